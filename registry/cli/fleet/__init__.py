"""``registry fleet``, and ``tune --fleet``: a work queue in the database, workers, and a Ray cluster."""
