"""Attention by torch's operators."""
