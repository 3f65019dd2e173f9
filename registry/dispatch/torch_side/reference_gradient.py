"""Gradients of an op by autograd of its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...arguments.lists import grouped, one_by_one
from ...contract import Op, as_tuple
from ...errors import UnsupportedError
from .states import keeping_dtype

Needed = bool | tuple[bool, ...]
"""True if the gradient of an argument is needed; for a list a bool per tensor."""

Gradient = torch.Tensor | tuple[torch.Tensor | None, ...] | None
"""The gradient of an argument; a tuple for a list of tensors."""


def reference_gradient(
    op: Op, values: Sequence[Any], grads: Sequence[torch.Tensor | None], needed: Sequence[Needed]
) -> list[Gradient]:
    """The gradients of the ``needed`` values, None for the others: the reference runs again, recorded by autograd.

    ``grads`` are those of the outputs, in the schema's order. Raises UnsupportedError when no differentiable output
    depends on a needed value.
    """
    assert op.backward is not None
    items, lengths = one_by_one(values)
    needs, _ = one_by_one(needed)
    leaves = [item.detach().requires_grad_() if need else item for item, need in zip(items, needs, strict=True)]
    with torch.enable_grad():
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        outputs = as_tuple(keeping_dtype(op.reference, tensors)(*grouped(leaves, lengths)))
    wanted = op.backward.by_reference_of(op.parsed.outputs)
    pairs = [
        (output, grad)
        for name, output, grad in zip(op.parsed.outputs, outputs, grads, strict=True)
        if name in wanted and grad is not None and output.requires_grad
    ]
    if not pairs:
        each = zip(op.parsed.names, needed, strict=True)
        asked = ", ".join(name for name, need in each if (any(need) if isinstance(need, tuple) else need))
        raise UnsupportedError(
            f"{op.name}: Backward.reference() finds no gradient: by its reference {', '.join(wanted)} does not depend"
            f" on {asked}",
            hint="write the reference in differentiable torch operations, without no_grad(), detach() or .item()",
        )
    places = [place for place, need in enumerate(needs) if need]
    found = torch.autograd.grad(
        [output for output, _ in pairs],
        [leaves[place] for place in places],
        [grad for _, grad in pairs],
        allow_unused=True,
    )
    gradients: list[torch.Tensor | None] = [None] * len(items)
    for place, gradient in zip(places, found, strict=True):
        gradients[place] = gradient
    return list(grouped(gradients, lengths))
