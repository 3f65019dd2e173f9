"""torch's modes in which a caller may be: a model is trained with gradients recorded, and served without.

An implementation that asks for the mode, or that uses what a mode lacks, such as the version counter of a tensor that
was made in inference mode, may be right in one and wrong in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

from ..arguments.schema import with_tensors
from ..contract import Op

GradMode = Literal["grad", "no-grad", "inference-mode"]

GRAD_MODES: Mapping[GradMode, Callable[[], AbstractContextManager[None]]] = {
    "grad": torch.enable_grad,
    "no-grad": torch.no_grad,
    "inference-mode": torch.inference_mode,
}
"""A context manager of each mode."""

OTHER_MODES: tuple[GradMode, ...] = ("no-grad", "inference-mode")
"""The modes that verification is not in anyway."""


def made_in(mode: GradMode, op: Op, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a call as a caller in that mode has them: activations are made in it, weights before."""
    if mode != "inference-mode":
        return values
    named = zip(op.parsed.names, values, strict=True)
    with torch.inference_mode():
        return tuple(value if name in op.weights else with_tensors((value,), torch.clone)[0] for name, value in named)
