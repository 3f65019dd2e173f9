"""A check that an op's ``problem`` refuses tensors of sizes that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..arguments.schema import with_tensors
from ..author_code import at
from ..contract import Op
from ..correctness.taken import is_posed
from ..faults.device_faults import out_of_memory
from ..problem import Problem


def shape_faults(op: Op, problem: Problem, values: tuple[Any, ...]) -> Iterator[str]:
    """Tensors that lack elements, which ``problem`` does not tell from whole ones, and which the reference refuses.

    Kernels know the dimensions of a problem alone, and would read beyond the end of such a tensor. Indices are zeros
    here, where the reference takes them: a table that is too short for its indices is no fault of sizes.
    """
    if _raises(op, values := _harmless(values)):
        return
    for place, name in enumerate(op.parsed.names):
        for shorter in _shorter(values[place]):
            given = (*values[:place], shorter, *values[place + 1 :])
            if is_posed(op, problem, given) and _raises(op, given):
                yield (
                    f"problem() does not tell {name} of shape {tuple(shorter.shape)} from one of"
                    f" {tuple(values[place].shape)}{at(op.problem)}, which alone fits the other arguments: raise"
                    " registry.InvalidArgumentError, since a kernel would read beyond its end"
                )
                break


def _harmless(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return with_tensors(values, lambda one: one.clone() if one.is_floating_point() else torch.zeros_like(one))


def _shorter(value: Any) -> Iterator[torch.Tensor]:
    """A tensor without its last elements of each dimension; one of two elements would be a size that broadcasts."""
    if isinstance(value, torch.Tensor):
        yield from (value.narrow(dim, 0, size - 1).clone() for dim, size in enumerate(value.shape) if size > 2)


def _raises(op: Op, values: tuple[Any, ...]) -> bool:
    """Whether the reference raises; it may write to copies alone."""
    try:
        op.reference(*with_tensors(values, torch.clone))
    except Exception as fault:  # whatever an author's function raises for sizes that it did not expect
        if out_of_memory(fault):
            raise
        return True
    return False
