"""Attention on CPUs."""
