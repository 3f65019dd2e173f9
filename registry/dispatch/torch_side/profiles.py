"""Calls under torch's tools that count: by name in its profiler, with their operations in its FLOP counter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd.profiler import record_function

from ...contract import Op
from .torch_private import dispatch_mode_stack, profiler

_FLOP_COUNTER = "torch.utils.flop_counter"
"""The module imports Triton, so that it is looked for once somebody else has imported it."""

_NOTHING = nullcontext()


class Profiles:
    """The name of one op's calls: ``kernel_registry::softmax (cpp.rows)``.

    A call of torch's operator, which may hold one of them, is ``kernel_registry::softmax`` by torch itself.
    """

    def __init__(self, qualified_name: str) -> None:
        self._name = qualified_name

    def around(self, resolved: Any) -> AbstractContextManager[Any]:
        """A with block around a run of what was resolved; one that does nothing while nobody profiles."""
        return record_function(self._shown(resolved)) if profiler._is_profiler_enabled else _NOTHING

    def run(self, resolved: Any, run: Callable[..., Any], *values: Any) -> Any:
        """``run(*values)`` under its name."""
        with record_function(self._shown(resolved)):
            return run(*values)

    def _shown(self, resolved: Any) -> str:
        candidate = resolved.choice.candidate
        return f"{self._name} ({'reference' if candidate is None else candidate.implementation.name})"


def count_flops(op: Op, packet: Any) -> None:
    """Have torch's FLOP counters count calls of an operator by the op's own floor.

    A counter has taken its copy of the formulas when it was made: those that are active get this one too.
    """
    module = sys.modules.get(_FLOP_COUNTER)
    if module is None:
        return

    def formula(*args: Any, out_val: Any = None, **attributes: Any) -> int:  # noqa: ARG001  (torch names it)
        problem = op.pose(op.arguments(op.parsed.bind(args, attributes)))
        return round(op.floor(problem).flop)

    formula._get_raw = True  # type: ignore[attr-defined]
    registries = [getattr(getattr(mode, "counter", None), "flop_registry", None) for mode in dispatch_mode_stack()]
    for formulas in (module.flop_registry, *registries):
        if isinstance(formulas, dict):
            formulas.setdefault(packet, formula)
