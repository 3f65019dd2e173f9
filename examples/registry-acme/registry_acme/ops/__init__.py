"""The contracts of this package's ops, one file a family."""
