"""Imports that a run's children share: done once, in the template process that the children are forked from.

Of a plugin only the package is imported here, which must be light. Its kernels and plugin files are not: they may start
threads or open a device, and a process that has done so cannot be forked.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable

import torch

from ...device import may_use_nvidia
from ..planning.problems import ProblemPlan
from ..processes import spawning

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
# the plugins in the box import the backends for almost any op: 20 ms of each child
_OPTIONAL = ("triton", "triton.compiler", _TRITON, "registry.backends.cpp", "registry.backends.cuda")


_INDUCTOR, _BEFORE_INDUCTOR = "torch._inductor.", "registry.backends.inductor.warm:import_without_a_look"
_OF_BACKENDS = (_INDUCTOR, "registry.")


def preloads_of(plans: Iterable[ProblemPlan]) -> list[tuple[str, ...]]:
    """The ``preloads`` of the plans' implementations, to import and call before processes are forked, each once.

    Those of backends come first: a library's import may start threads, as pyarrow's does, and then serves nobody.
    """
    wanted = dict.fromkeys(tuple(choice.implementation.preloads) for plan in plans for choice in plan.supported)
    kinds = sorted(filter(None, wanted), key=lambda entries: not entries[0].startswith(_OF_BACKENDS))
    return [(_BEFORE_INDUCTOR, *entries) if entries[0].startswith(_INDUCTOR) else entries for entries in kinds]


def warm(plans: Iterable[ProblemPlan]) -> None:
    """Let children started from now on find imported what the plans' implementations want, as soon as that is done."""
    for entries in preloads_of(plans):
        spawning.warm(*entries)


def preload() -> None:
    """Import all that workers and compilers need, Triton and plugins as far as they are installed."""
    for module in _MODULES:
        importlib.import_module(module)
    for module in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    if _TRITON in sys.modules and (torch.version.hip or may_use_nvidia()):
        sys.modules[_TRITON].warm()  # 0.5 s, which nothing needs where Triton runs no kernel
    from ...discovery.catalog import Catalog

    with contextlib.suppress(Exception):  # a broken plugin is reported by the children, which collect it again
        Catalog().ops()
