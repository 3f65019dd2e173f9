"""Benchmarks: the source of the numbers in README.md."""
