"""Planning: which problems are tuned with which candidates, their weights, and their distance to tuned problems."""
