"""Commands for authors of ops and implementations."""
