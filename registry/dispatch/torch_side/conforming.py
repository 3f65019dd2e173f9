"""The reference as an answer to calls: its outputs have the strides that the op's fake says, as those of plans have.

Compiled programs read outputs by the strides of the fake: with others they would compute with other elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...contract import Op, RowMajor, as_tuple
from ...problem import TensorSpec


def conforming_reference(op: Op) -> Callable[..., Any]:
    """The op's reference for the schema's values in order; outputs that lie otherwise than its fake says are copied.

    Without a fake the reference says how outputs lie.
    """
    if op.fake is None:
        return op.reference
    row_major = isinstance(op.fake, RowMajor) and op.fake.otherwise is None

    def reference(*values: Any) -> Any:
        outputs = op.reference(*values)
        given = as_tuple(outputs)
        if not given or (row_major and all(one.is_contiguous() for one in given)):
            return outputs
        specs = op.output_specs(op.arguments(values), given[0].device)
        if len(specs) != len(given):
            return outputs
        made = tuple(_as_said(one, spec) for one, spec in zip(given, specs.values(), strict=True))
        return made[0] if isinstance(outputs, torch.Tensor) else made

    return reference


def _as_said(output: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The output, or a copy of it with the strides of the spec; the stride of a dimension of size one is any."""
    if output.shape != spec.shape or output.dtype != spec.dtype or not output.numel():
        return output
    steps = zip(spec.shape, output.stride(), spec.strides, strict=True)
    if all(size == 1 or one == other for size, one, other in steps):
        return output
    return spec.empty(output.device).copy_(output)
