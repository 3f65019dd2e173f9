"""``torch.softmax`` along any dimension, rounded once to the dtype of its input."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Softmax


class SoftmaxRoundedOnce(Softmax):
    """``torch.softmax``, on a CPU in float32 where torch would round twice to a half.

    That is along another dimension than the last: in bfloat16 1.9 roundings of the exact result, in float16 1.4 (torch
    2.11 to 2.15).
    """

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, which writes through ``out=`` where torch rounds once."""
        plain = super().bind(problem, config, device, built)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, dim = arguments
            if dim in {-1, x.dim() - 1}:
                plain(outputs, arguments, scratch)
            else:
                outputs[0].copy_(torch.softmax(x, dim, dtype=torch.float32))

        return run if device.type == "cpu" and problem.dtype in {"bfloat16", "float16"} else plain
