"""Quantisation of activations in plain torch, and what Inductor makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .native import Native

_LEAST_SCALE = 2.0**-126


def quantized(
    x: torch.Tensor, out_dtype: str, group_size: int, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels of ``x`` in ``out_dtype``, and the given scale, or those of rows or groups; quotients are in float32."""
    most = 127.0 if out_dtype == "int8" else 448.0
    wide, k = x.float(), x.shape[-1]
    if scale is not None:
        scales = scale.reshape(1).clone()
        quotient = wide / scales
    elif group_size == 0:
        scales = (wide.abs().amax(-1, keepdim=True) / most).clamp_min(_LEAST_SCALE)
        quotient = wide / scales
    else:
        padded = torch.nn.functional.pad(wide, (0, -k % group_size)).unflatten(-1, (-1, group_size))
        scales = (padded.abs().amax(-1) / most).clamp_min(_LEAST_SCALE)
        quotient = (padded / scales.unsqueeze(-1)).flatten(-2)[..., :k]
    clamped = quotient.clamp(-most, most)
    if out_dtype == "int8":
        levels = torch.where(clamped.isnan(), 0.0, clamped.round()).to(torch.int8)
    else:
        levels = clamped.to(torch.float8_e4m3fn)
    return levels.contiguous(), scales.contiguous()


class Quantize(Native):
    """The formula, an operator at a time."""

    op = "quantize_per_token"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the formula; the output is row-major, whatever the layout of x."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return quantized(*arguments)

        return run


class CompiledQuantize(InductorImplementation):
    """The formula in one or two passes."""

    op = "quantize_per_token"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.out_dtype == "float8_e4m3fn" and device.type == "cuda" and device.capability < (8, 9):
            yield f"Inductor makes no float8_e4m3fn on {device.architecture} (compute capability 8.9 has it)"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[..., k]``, the name of the levels' dtype, the size of a group, and a static scale or None."""
        x, out_dtype, group_size, scale = values
        return quantized(x, out_dtype, group_size, scale)
