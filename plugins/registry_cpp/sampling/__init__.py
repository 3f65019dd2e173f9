"""Drawing tokens on CPUs."""
