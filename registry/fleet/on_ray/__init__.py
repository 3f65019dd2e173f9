"""A fleet on a Ray cluster: an actor for each GPU holds a worker, and CPU actors compile ahead and share artifacts."""
