"""Imports that a run's children share: done once, in the template process that the children are forked from.

Of a plugin only the package is imported here, which must be light. Its kernels and plugin files are not: they may start
threads or open a device, and a process that has done so cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable

from ..planning.problems import ProblemPlan

ENTRY = f"{__name__}:preload"
"""The function that a template calls, see ``spawning.kept``."""

# torch._dynamo takes seconds: torch imports it at the first call of a reference on tensors without data
_MODULES = (
    "numpy",
    "torch._dynamo",
    "registry.contracts",
    "registry.tuner.workers.worker_process",
    "registry.tuner.workers.compile_worker",
)
_TRITON = "registry.backends.triton"
_OPTIONAL = ("triton", "triton.compiler", _TRITON)


def preloads_of(plans: Iterable[ProblemPlan]) -> tuple[str, ...]:
    """Modules and functions that the plans' implementations want imported and called before processes are forked."""
    everything = [choice.implementation.preloads for plan in plans for choice in plan.supported]
    return tuple(dict.fromkeys(entry for entries in everything for entry in entries))


def preload() -> None:
    """Import all that workers and compilers need, Triton and plugins as far as they are installed."""
    for module in _MODULES:
        importlib.import_module(module)
    for module in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    if _TRITON in sys.modules:
        sys.modules[_TRITON].warm()
    from ...discovery.catalog import Catalog

    with contextlib.suppress(Exception):  # a broken plugin is reported by the children, which collect it again
        Catalog().ops()
