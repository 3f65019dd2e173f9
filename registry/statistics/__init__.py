"""Statistics that neither the standard library nor numpy has."""
