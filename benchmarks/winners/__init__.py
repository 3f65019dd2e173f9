"""Shipped winners: whether what was measured is what runs."""
