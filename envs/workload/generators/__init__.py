"""Synthetic requests: each module is a family that a scenario can name, or a part of one."""
