"""Memory that a sandbox shares with the trusted process, on the host or a GPU, and the places of tensors in it."""
