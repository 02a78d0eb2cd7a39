"""Training of routers: what is learned and how, and how it is judged."""
