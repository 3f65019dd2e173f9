"""``dtype=`` of softmax, as torch.softmax has it."""

from __future__ import annotations

from typing import Any

import torch

from ...contract import CanonicalCall
from ...tracing import refuse


def softmax_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """softmax with ``dtype``, to which x is converted before the op runs; of integers and bools too."""
    if "dtype" not in given:
        return None
    dtype, x = given.pop("dtype"), given.get("x")
    if dtype is not None:
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            refuse(f"softmax: dtype={dtype!r:.80}", hint="expected a floating torch.dtype, e.g. torch.float32, or None")
        if isinstance(x, torch.Tensor):
            given["x"] = x.to(dtype)
    return CanonicalCall(given)
