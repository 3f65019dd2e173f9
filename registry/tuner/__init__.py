"""Shapes to winners: plan, compile, verify, measure, decide, store."""
