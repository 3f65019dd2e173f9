"""Formats of linear layers: what each costs in accuracy."""
