"""A weight that is a vector, for linear, as torch has it."""

from __future__ import annotations

from typing import Any

import torch

from ...contract import CanonicalCall


def linear_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """linear with a weight [k], and a bias without dimensions: one number for each row of x."""
    weight, bias = given.get("weight"), given.get("bias")
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    given["weight"] = weight[None]
    if isinstance(bias, torch.Tensor) and not bias.dim():
        given["bias"] = bias[None]
    return CanonicalCall(given, lambda y: y.squeeze(-1))
