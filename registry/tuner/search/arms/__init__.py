"""The arms of a search: each file holds one way of choosing the next candidate, or a model that such an arm asks."""
