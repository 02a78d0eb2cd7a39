"""Parameters that handcrafted routers were tuned to, a file for each scenario."""
