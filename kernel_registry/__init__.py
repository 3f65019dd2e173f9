"""Starts the commands ``tune`` and ``registry``. A package of its own, because importing ``registry`` imports torch:
Ctrl-C in those seconds ends a command as it does later, with a line and code 130."""

from __future__ import annotations

import sys
from importlib import import_module

INTERRUPTED = 130


def tune() -> None:
    """Entry point of the script ``tune``."""
    _start("tune", "registry.cli.tune")


def registry() -> None:
    """Entry point of the script ``registry``."""
    _start("registry", "registry.cli.main")


def _start(program: str, module: str) -> None:
    try:
        import_module(module).main()
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: interrupted\n")
        sys.exit(INTERRUPTED)
