"""FlashInfer's norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry import Config, Device, Problem
from registry.artifact import Built
from registry.implementation import Run, Tensors

from .adapting import WithPrepared, flashinfer, library, norm_reasons

_PREPARED = {"weight_in_float32": ("weight",), "bias_in_float32": ("bias",)}


def weighted_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why FlashInfer cannot run a fused_add_rms_norm."""
    yield from norm_reasons(problem, device)
    if not problem.weight:
        yield "it needs a weight"


def rms_norm(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """``x * rsqrt(mean(x**2) + eps) * weight`` over the last dimension, into y."""
    cols = x.shape[-1]
    library().rmsnorm(x.view(-1, cols), weight, eps, out=y.view(-1, cols))


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float
) -> None:
    """``residual += x``, then its norm into x. An offset other than 0 and Gemma's 1 is added to the weight before."""
    rows = (x.view(-1, x.shape[-1]), residual.view(-1, x.shape[-1]))
    if offset == 1.0:
        library().gemma_fused_add_rmsnorm(*rows, weight, eps)
    else:
        library().fused_add_rmsnorm(*rows, weight + offset if offset else weight, eps)


class FlashInferLayerNorm(WithPrepared):
    """``layernorm``, which takes bfloat16 rows with weight and bias in float32."""

    op = "layer_norm"
    name = "flashinfer.layer_norm"
    returns_outputs = True

    def reasons(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from norm_reasons(problem, device)
        if problem.dtype != "bfloat16":
            yield f"dtype is {problem.dtype}, expected bfloat16"
        if not (problem.weight and problem.bias):
            yield "it needs a weight and a bias"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return _PREPARED

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        found: torch.Tensor = values[0].to(torch.float32, copy=True)
        return found

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            x, _, _, eps, weight, bias = arguments
            found: torch.Tensor = library().layernorm(x.view(-1, x.shape[-1]), weight, bias, eps)
            return found.view_as(x)

        return run


RMS_NORM = flashinfer("rms_norm", "rms_norm", rms_norm, norm_reasons, into=True)
FUSED_ADD_RMS_NORM = flashinfer(
    "fused_add_rms_norm", "fused_add_rms_norm", fused_add_rms_norm, weighted_reasons, into=True
)
