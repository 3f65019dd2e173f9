"""Drawing tokens."""
