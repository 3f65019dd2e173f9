"""Matrix products for implementations that compute a linear layer piece by piece, by torch's libraries."""

from __future__ import annotations

from functools import lru_cache

import torch


def linear_into(into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Write ``x @ weight.T + bias`` into ``into`` [rows, n], and return it: x [rows, k], weight [n, k], bias [n]."""
    if bias is None:
        return torch.mm(x, weight.t(), out=into)
    return torch.addmm(bias, x, weight.t(), out=into)


def add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add ``a @ b`` to ``total``, which is float32 where a and b are halves; return it.

    A product of halves is not rounded to them before it is added.
    """
    if total.dtype == a.dtype:
        return total.addmm_(a, b)
    if total.device.type != "cuda":
        return total.addmm_(a.to(total.dtype), b.to(total.dtype))
    if adds_wide(total.device, a.dtype):
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
        return total
    return total.add_(torch.mm(a, b, out_dtype=total.dtype))


@lru_cache(maxsize=64)
def adds_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """True if torch adds a product of halves to a float32 tensor on the device in one kernel, and rightly.

    The operator's overload is young, and some versions refuse a sum of another dtype. It is tried once for each device;
    call this outside of a CUDA graph's capture first.
    """
    total = torch.ones(16, 16, device=device)
    ones = torch.ones(16, 16, device=device, dtype=dtype)
    try:
        torch.ops.aten.addmm.dtype_out(total, ones, ones, total.dtype, out=total)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((total == 17.0).all())
