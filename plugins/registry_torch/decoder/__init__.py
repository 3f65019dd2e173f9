"""Ops of a decoder beside its products."""
