"""Other forwards for modules of a model, each by calls of the registry."""
