"""Searching: proposes candidates of a problem until the budget ends, and holds what their trials found."""
