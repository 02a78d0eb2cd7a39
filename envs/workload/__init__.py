"""Requests: tapes, synthetic generators, trace readers."""
