"""The command line: ``tune`` and ``registry``, a file a command."""
