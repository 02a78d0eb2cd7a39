"""Benchmarks and cross-checks against independent programs."""
