"""Routers known from papers, with public code or without."""
