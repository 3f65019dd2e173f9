"""The work that Inductor does once per process before its first load; done before a fork, it serves all children.

Nothing here may start a thread or open a device: a process that has done so cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib

from ...device import driver_left_alone

_LOADED_WITH = ("torch._inductor.codegen.memory_planning", "torch._inductor.hooks", "torch.fx.experimental.validator")
"""Modules that Inductor imports at the first load; these are private, and skipped if torch does not have them."""


_LOOKING = ("torch.utils.cpp_extension", "torch._inductor.runtime.benchmarking")
"""Modules that look for a GPU when they are imported: the one to warn where there is none beside a CUDA toolkit, the
other for a setting. NVML, by which torch looks, starts a thread."""


def import_without_a_look() -> None:
    """Import what of Inductor looks for a GPU, without asking the driver."""
    with driver_left_alone():
        for name in _LOOKING:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def warm() -> None:
    """Import the modules that a load needs, and hash torch's source, in 0.2 s, without opening a device or a thread."""
    for name in _LOADED_WITH:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError, AttributeError, OSError):
        importlib.import_module("torch._inductor.codecache").torch_key()
