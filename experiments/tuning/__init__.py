"""Routers' parameters searched by Optuna, with the same budget for each router."""
