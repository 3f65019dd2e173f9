"""Whether an op's reference computes in float64 where its arguments are float64, as verification takes for granted."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments.schema import with_tensors
from ..author_code import at
from ..contract import Op
from .numerics import results_of, widened

_INVISIBLE = 2.0**-40
"""A relative change of inputs that float64 holds and float32, whose unit roundoff is 2**-24, does not."""
_VISIBLE = 2.0**-9
"""A relative change that changes most results of float32 and float16 arithmetic, but few that an op rounds itself."""
_MOST = 0.9
_FEWEST = 4
"""Results of fewer elements are not judged: changes of two factors may cancel, or rows have one element."""


@torch.no_grad()
def narrow_faults(op: Op, values: tuple[Any, ...]) -> list[str]:
    """Results that the reference computes in less than float64 although its arguments are float64, in words.

    Found by changes of all floating arguments: one that only float64 holds changes nothing, and one that float32 holds
    changes nearly every element. Results of another dtype, of few elements, and those that an op rounds to few values,
    are not judged.
    """
    wide = widened(values)
    first, nearly, apart = (results_of(op, _changed(wide, relative)) for relative in (0.0, _INVISIBLE, _VISIBLE))
    return [
        f"its reference computes {name} in less than float64 where its arguments are float64{at(op.reference)}: widen"
        " by x.to(torch.promote_types(x.dtype, torch.float32)), not by x.float()"
        for name, one, same, other in zip(op.parsed.results, first, nearly, apart, strict=True)
        if one.dtype == torch.float64
        and one.shape == same.shape == other.shape
        and one.numel() >= _FEWEST
        and not bool(_unlike(one, same).any())
        and float(_unlike(one, other).double().mean()) >= _MOST
    ]


def _unlike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one != other) & ~(one.isnan() & other.isnan())


def _changed(values: tuple[Any, ...], relative: float) -> tuple[Any, ...]:
    """``values``, each element of a floating tensor greater or less by ``relative``, at random."""
    generator = torch.Generator().manual_seed(0)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=tensor.dtype).mul_(2).sub_(1)
        return tensor * (1.0 + signs.to(tensor.device) * relative)  # infinity stays infinite

    return with_tensors(values, change)
