"""Logits of any number of dimensions for cross_entropy, the classes in the second, as torch has them."""

from __future__ import annotations

from typing import Any

import torch

from ...contract import CanonicalCall
from ...problem import dtype_name
from ...tracing import refuse


def cross_entropy_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """cross_entropy of logits [cols] and one target, or [batch, cols, ...] and targets [batch, ...].

    lse, and of reduction "none" the loss, then have the shape of the target.
    """
    logits, target = given.get("logits"), given.get("target")
    if not isinstance(logits, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    if logits.dim() == 2:
        return None
    if target.is_floating_point():
        refuse(
            f"cross_entropy: target is {dtype_name(target.dtype)}, expected int64, a class for each row",
            hint="of probabilities take torch.nn.functional.cross_entropy",
        )
    if not logits.dim() or target.shape != logits.shape[:1] * (logits.dim() > 1) + logits.shape[2:]:
        return None
    cols = logits.shape[logits.dim() > 1]
    given["logits"] = logits.movedim(1, -1).reshape(-1, cols) if logits.dim() > 1 else logits[None]
    given["target"] = target.reshape(-1)
    each = given.get("reduction", "mean") == "none"

    def finish(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        loss, lse = outputs
        return loss.view(target.shape) if each else loss, lse.view(target.shape)

    return CanonicalCall(given, finish)
