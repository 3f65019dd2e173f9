"""torch's private grouped product of float8. Where a version lacks it, what needs it is unsupported, with a reason.

torch 2.11 and 2.15 have it alike; their public ``torch.nn.functional.scaled_grouped_mm`` is another door to its kernel,
and checks more at each call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_multiply: Callable[..., torch.Tensor] | None = getattr(torch, "_scaled_grouped_mm", None)


def missing() -> str:
    """Why there is no grouped product of float8; "" if there is one."""
    return "" if _multiply is not None else f"torch {torch.__version__} has no _scaled_grouped_mm"


def grouped_product(
    x: torch.Tensor, weights: torch.Tensor, scale_x: torch.Tensor, scale_weights: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """``[m, k]`` and ``[experts, n, k]`` in float8_e4m3fn to bfloat16 ``[m, n]``, without fast accumulation.

    ends  int32 ``[experts]``, the end of each expert's rows: the first expert's begin with row 0, and rows from the
          last end on are left uninitialised
    """
    assert _multiply is not None
    return _multiply(
        x,
        weights.mT,
        scale_x.view(-1),
        scale_weights.view(weights.shape[0], -1),
        offs=ends,
        out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
