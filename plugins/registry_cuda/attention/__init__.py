"""Attention on Hopper's warpgroup tensor cores."""
