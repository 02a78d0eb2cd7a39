"""Finished or unfinished runs of all that learns, read from their events and compared."""
