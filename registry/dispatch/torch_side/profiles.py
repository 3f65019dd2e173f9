"""Calls in torch's profiler, by name, and in its FLOP counter, by the op's floor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd.profiler import record_function

from ...contract import Op
from .torch_private import dispatch_mode_stack, profiler

_FLOP_COUNTER = "torch.utils.flop_counter"
"""A module that imports Triton; it is used only if the program has imported it."""

_NOTHING = nullcontext()


class Profiles:
    """The profiler's records of one op's calls, named ``kernel_registry::softmax (cpp.rows)``.

    A call of torch's operator, which may contain such a record, is ``kernel_registry::softmax`` by torch itself.
    """

    def __init__(self, qualified_name: str) -> None:
        self._name = qualified_name

    def around(self, resolved: Any) -> AbstractContextManager[Any]:
        """A context for a run of a resolved call that records it; it does nothing without a profiler."""
        return record_function(self._shown(resolved)) if profiler._is_profiler_enabled else _NOTHING

    def run(self, resolved: Any, run: Callable[..., Any], *values: Any) -> Any:
        """``run(*values)``, recorded by name."""
        with record_function(self._shown(resolved)):
            return run(*values)

    def _shown(self, resolved: Any) -> str:
        candidate = resolved.choice.candidate
        return f"{self._name} ({'reference' if candidate is None else candidate.implementation.name})"


def count_flops(op: Op, packet: Any) -> None:
    """Make torch's FLOP counters count calls of an operator by the op's floor.

    A counter copies the formulas when it is made, so the active ones get this formula, too.
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
