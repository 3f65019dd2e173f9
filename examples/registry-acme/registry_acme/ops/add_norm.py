"""``acme::fused_add_rms_norm``, which returns nothing and writes to two of its arguments, as vLLM's does."""

from __future__ import annotations

import torch

from registry import rows_op


def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    """``residual += x``, then ``x = residual / sqrt(mean(residual^2) + eps) * weight``; halves in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)) + residual
    residual.copy_(wide)
    x.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight)


FUSED_ADD_RMS_NORM = rows_op(
    "acme::fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
    reference,
    rows=("x", "residual"),
    flop=5,
    examples=tuple(
        {"rows": rows, "cols": cols, "dtype": dtype}
        for dtype in ("float32", "bfloat16")
        for rows, cols in ((5, 33), (3, 257))
    ),
)
