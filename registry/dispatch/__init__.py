"""From a call to the kernel that runs: resolution, plans, the hot path, explain."""
