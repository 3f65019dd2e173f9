"""Releases and site databases as processes read them: from copies on this machine, which need no database."""
