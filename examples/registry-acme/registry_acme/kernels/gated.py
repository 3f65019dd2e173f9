"""gated, as a library's ready functions."""

from __future__ import annotations

import torch

from registry import implementation_of

from ..ops.gated import ACTIVATIONS


def _gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return ACTIVATIONS[activation](gate).mul_(value)


GATED = implementation_of(
    "acme::gated",
    "acme.functional",
    _gated,
    library="torch",
    any_size=True,
    device_types={"cpu", "cuda"},
)
