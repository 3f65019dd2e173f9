"""Shapes files: the YAML grammar by which a user names problems."""
