"""Generators fitted to traces: endless days like the one recorded."""
