"""Routers bred by CMA-ES: the whole population plays as one batch of environments."""
