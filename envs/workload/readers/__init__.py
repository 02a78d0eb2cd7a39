"""Readers of recorded traces: one file a format, and the registry that picks among them."""
