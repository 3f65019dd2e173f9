"""The command line, ``tune`` and ``registry``: one file per command."""
