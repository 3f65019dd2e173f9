"""Losses over a vocabulary."""
