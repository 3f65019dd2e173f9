"""Attention of packed sequences beside what else a user could run: see ``benchmarks.varlen.__main__``."""
