"""What Inductor computes once a process before it loads anything: a process that forks does it for its children."""

from __future__ import annotations

import contextlib
import importlib

_LOADED_WITH = ("torch._inductor.codegen.memory_planning", "torch._inductor.hooks", "torch.fx.experimental.validator")
"""Imported at the first load; private names, so that a torch without them is none the worse."""


def warm() -> None:
    """Import what a load imports, and hash torch's own source, 0.2 s. It opens no device and starts no thread."""
    for name in _LOADED_WITH:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError, OSError):
        importlib.import_module("torch._inductor.codecache").torch_key()
