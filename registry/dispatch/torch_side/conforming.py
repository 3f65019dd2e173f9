"""The reference as an answer to calls: its outputs have the strides that the op's fake says, as those of plans have.

Compiled programs read outputs by the strides of the fake: with others they would compute with other elements.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

import torch

from ...contract import Op, RowMajor, as_tuple
from ...problem import TensorSpec

_MOST_KEPT = 256
"""Calls of which an answer remembers how outputs lie: asking a fake takes several times as long as a small call."""

_Said = tuple[TensorSpec, ...] | None
"""How a fake says that the outputs of a call lie; None where it cannot tell."""

_UNASKED = object()


def conforming_reference(op: Op) -> Callable[..., Any]:
    """The op's reference for the schema's values in order; outputs that lie otherwise than its fake says are copied.

    Without a fake, or where it raises, the reference says how outputs lie.
    """
    if op.fake is None:
        return op.reference
    run, said = op.reference, _Layouts(op)

    def reference(*values: Any) -> Any:
        outputs = run(*values)
        given = as_tuple(outputs)
        if said.as_returned(values, given):
            return outputs
        specs = said.specs(values)
        if specs is None or len(specs) != len(given):
            return outputs
        made = tuple([_as_said(one, spec) for one, spec in zip(given, specs, strict=True)])
        return made[0] if isinstance(outputs, torch.Tensor) else made

    return reference


class _Layouts:
    """How an op's fake says that outputs lie, remembered for calls in which it reads equal layouts and attributes."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._always_row_major = op.size_rule(row_major=False) is not None
        self._is_rule = isinstance(op.fake, RowMajor)
        names = op.parsed.names
        self._read = [place for place, name in enumerate(names) if name in op.fake_reads]
        self._kept: dict[Hashable, _Said] = {}

    def as_returned(self, values: tuple[Any, ...], outputs: tuple[Any, ...]) -> bool:
        """True for outputs that are row-major, as the fake's rule says those of such a call are, and for none."""
        if not self._is_rule:
            return not outputs
        return _row_major(outputs) and (self._always_row_major or _row_major(values))

    def specs(self, values: tuple[Any, ...]) -> _Said:
        """Specs of the outputs of a call with these values."""
        try:
            told = tuple([_told(values[place]) for place in self._read])
            said = self._kept.get(told, _UNASKED)
        except Exception:  # a tensor without strides, or a size that only a trace knows
            return None
        if said is not _UNASKED:
            return cast("_Said", said)
        said = self._asked(values)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[told] = said
        return said

    def _asked(self, values: tuple[Any, ...]) -> _Said:
        op = self._op
        try:
            return tuple(op.new_output_specs(op.arguments(values), torch.device("meta")).values())
        except Exception:  # a fake may raise anything, e.g. where it looks at data, but the reference has answered
            return None


def _row_major(values: tuple[Any, ...]) -> bool:
    """Whether all tensors among the values are row-major."""
    for value in values:  # not all() with a generator, which takes longer than a small call has
        if isinstance(value, torch.Tensor):
            if not value.is_contiguous():
                return False
        elif type(value) is tuple and not _row_major(value):
            return False
    return True


def _told(value: Any) -> Hashable:
    """What a fake sees of an argument, to be compared."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if type(value) is tuple:
        return tuple([_told(one) for one in value])
    return repr(value) if type(value) is float else value  # 0.0 equals -0.0


def _as_said(output: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The output, or a copy of it with the strides of the spec; the stride of a dimension of size one is any."""
    if output.stride() == spec.strides or output.shape != spec.shape or output.dtype != spec.dtype:
        return output
    steps = zip(spec.shape, output.stride(), spec.strides, strict=True)
    if not output.numel() or all(size == 1 or one == other for size, one, other in steps):
        return output
    return spec.empty(output.device).copy_(output)
