"""A model of transformers with and without the registry."""
