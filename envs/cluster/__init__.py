"""Compiled cluster simulator: step times, block caches, batching."""
