"""Which calls an op takes: those that pose the problem that is asked for, and that its reference computes."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments.schema import with_tensors
from ..contract import Op
from ..faults.device_faults import out_of_memory
from ..problem import Problem
from .numerics import reference64


def is_posed(op: Op, problem: Problem, values: tuple[Any, ...]) -> bool:
    """Whether values are those of a call of the problem."""
    try:
        return op.pose(op.arguments(values), problem) == problem
    except Exception:  # an author's function may raise anything for what the op does not take
        return False


def reference_if_taken(op: Op, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...] | None:
    """The float64 reference of a call, None where it raises: a problem may tell nothing of what it does not take.

    On the CPU, where an index beyond a table raises: on a GPU it ends what this process may do with the device.
    """
    try:
        return reference64(op, with_tensors(values, torch.Tensor.cpu))
    except Exception as fault:  # an author's reference may raise anything for tensors that it does not take
        if out_of_memory(fault):
            raise
        return None
