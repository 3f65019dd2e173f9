"""Calls in torch's profiler, by name, and in its FLOP counter, by the op's floor."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from torch.autograd.profiler import record_function

from ...contract import Op
from ...problem import Value
from ..recording.recorder import is_paused
from .nvtx import NVTX, nvtx_range
from .torch_private import dispatch_mode_stack, profiler

_FLOP_COUNTER = "torch.utils.flop_counter"
"""A module that imports Triton; it is used only if the program has imported it."""

PROFILE_VARIABLE = "KERNEL_REGISTRY_PROFILE"
"""The environment variable with the folder of traces of a process that ``registry profile`` started."""

_FLAGS: Mapping[str, Value] = {"true": True, "false": False}
_NOTHING = nullcontext()
_BOX = "kernel_registry::"
_NAMED = re.compile(r"(\w+::\w+) \((\w+\.[^()\s]+|reference)\)(?: \[(.*)\])?")


@dataclass
class _Detail:
    """``on``: names of records tell the dimensions of the problem, too."""

    on: bool


_detail = _Detail(on=PROFILE_VARIABLE in os.environ)


@contextmanager
def with_dimensions() -> Iterator[None]:
    """A context in which the names of records tell the dimensions of problems."""
    before, _detail.on = _detail.on, True
    try:
        yield
    finally:
        _detail.on = before


def parsed_name(record: str) -> tuple[str, str, str] | None:
    """Op, implementation and the text of the dimensions ("" without) in a record's name; None for any other name."""
    found = _NAMED.fullmatch(record)
    return None if found is None else (found[1].removeprefix(_BOX), found[2], found[3] or "")


def dims_of(written: str) -> dict[str, Value]:
    """The dimensions in the text that a record's name has: ``rows=64 causal=true dtype=float32``."""
    pairs = (part.partition("=") for part in written.split())
    return {name: _FLAGS.get(value, _number_or_text(value)) for name, _, value in pairs}


def _written(dims: Mapping[str, Value]) -> str:
    # no JSON: kineto puts other quotes in their place
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in dims.items()
    )


def _number_or_text(value: str) -> Value:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


class Profiles:
    """The profiler's records of one op's calls, named ``kernel_registry::softmax (cpp.rows)``.

    Under ``registry profile`` the dimensions of the problem follow. A call of torch's operator, which may contain such
    a record, is ``kernel_registry::softmax`` by torch itself. With ``KERNEL_REGISTRY_NVTX=1`` there are NVTX ranges of
    these names, too, without a profiler as well.
    """

    def __init__(self, qualified_name: str) -> None:
        self._name = qualified_name

    def around(self, resolved: Any) -> AbstractContextManager[Any]:
        """A context for a run of a resolved call that records it.

        It does nothing without a profiler, and for calls that are none of the program's, such as a model's proofs.
        """
        if not profiler._is_profiler_enabled or is_paused():
            return _NOTHING
        name = self._shown(resolved)
        return _nested(name) if NVTX else record_function(name)

    def run(self, resolved: Any, run: Callable[..., Any], *values: Any) -> Any:
        """``run(*values)``, recorded by name."""
        with self.around(resolved):
            return run(*values)

    def _shown(self, resolved: Any) -> str:
        candidate, problem = resolved.choice.candidate, resolved.problem
        name = f"{self._name} ({'reference' if candidate is None else candidate.implementation.name})"
        return f"{name} [{_written(problem.dims)}]" if _detail.on and problem is not None else name


@contextmanager
def _nested(name: str) -> Iterator[None]:
    """An NVTX range, and a record where torch's profiler runs."""
    with nvtx_range(name), record_function(name):
        yield


def count_flops(op: Op, packet: Any) -> None:
    """Make torch's FLOP counters count calls of an operator by the op's floor."""
    _count(packet, lambda args, attributes: _flop(op, op.parsed.bind(args, attributes)))


def count_gradient_flops(op: Op, packet: Any) -> None:
    """Make torch's FLOP counters count calls of a reference's gradient by twice the op's floor.

    Each product of the op has two factors, and a gradient for each.
    """
    _count(packet, lambda args, _: 2 * _flop(op, op.parsed.coerced(args[1:-1])))


def _flop(op: Op, values: tuple[Any, ...]) -> int:
    return round(op.floor(op.pose(op.arguments(values))).flop)


def _count(packet: Any, flop: Callable[[tuple[Any, ...], Mapping[str, Any]], int]) -> None:
    # a counter copies the formulas when it is made, so the active ones get this formula, too
    module = sys.modules.get(_FLOP_COUNTER)
    if module is None:
        return

    def formula(*args: Any, out_val: Any = None, **attributes: Any) -> int:  # noqa: ARG001  (torch names it)
        return flop(args, attributes)

    formula._get_raw = True  # type: ignore[attr-defined]
    registries = [getattr(getattr(mode, "counter", None), "flop_registry", None) for mode in dispatch_mode_stack()]
    for formulas in (module.flop_registry, *registries):
        if isinstance(formulas, dict):
            formulas.setdefault(packet, formula)
