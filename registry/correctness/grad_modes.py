"""torch's modes in which a caller may be: a model is trained with gradients recorded, and served without.

An implementation that asks for the mode, or that uses what a mode lacks, such as the version counter of a tensor that
was made in inference mode, may be right in one and wrong in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch

GradMode = Literal["grad", "no-grad", "inference-mode"]

GRAD_MODES: Mapping[GradMode, Callable[[], AbstractContextManager[None]]] = {
    "grad": torch.enable_grad,
    "no-grad": torch.no_grad,
    "inference-mode": torch.inference_mode,
}
"""A context manager of each mode."""

OTHER_MODES: tuple[GradMode, ...] = ("no-grad", "inference-mode")
"""Those that verification is not in anyway."""
