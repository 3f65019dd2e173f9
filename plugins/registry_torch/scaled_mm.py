"""Products of float8 and int8 operands: torch's own operators within their limits, dequantised operands without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from .native import Native

_BLOCK = 128
_ALIGNED = 16
"""Bytes: cuBLASLt refuses operands and scales of rows that begin between multiples."""
_EXACT = 1024
"""The k's whose products of int8 float32 sums exactly: 1024 times 2**14 is 2**24."""


def _dequantized(levels: torch.Tensor, scales: torch.Tensor, rows: int) -> torch.Tensor:
    """``levels`` times their scales, ``[n, k]`` in float32; ``scales``: one for each ``rows`` by 128.

    It works on whole blocks: with a division of the column's number, Inductor 2.15 on a CPU reads scales past their
    end.
    """
    (n, k), blocks = levels.shape, scales.shape[-1]
    wide = torch.nn.functional.pad(levels.float(), (0, -k % _BLOCK, 0, -n % rows))
    return (wide.view(-1, rows, blocks, _BLOCK) * scales.reshape(-1, 1, blocks, 1)).view(-1, blocks * _BLOCK)[:n, :k]


def _blocks(scale_b: torch.Tensor, n: int) -> bool:
    return scale_b.numel() > 1 and scale_b.shape != (n, 1)


def _finished(product: torch.Tensor, bias: torch.Tensor | None, out_dtype: str) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, out_dtype)
    return (product if bias is None else product + bias).to(dtype).contiguous()


def _raw(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b.T`` of the levels, as float32: float8 is summed in float32, int8 exactly and rounded once."""
    if a.dtype != torch.int8 or a.shape[-1] <= _EXACT:
        return torch.nn.functional.linear(a.float(), b.float())
    parts = zip(a.split(_EXACT, -1), b.split(_EXACT, -1), strict=True)
    total = sum(torch.nn.functional.linear(one.float(), other.float()).int() for one, other in parts)
    assert isinstance(total, torch.Tensor)
    return total.float()


def dequantized_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: str,
) -> torch.Tensor:
    """The product of dequantised operands: scales of blocks multiply the operands, other scales the product."""
    if not _blocks(scale_b, b.shape[0]):
        return _finished(_raw(a, b) * scale_a * scale_b.reshape(-1), bias, out_dtype)
    left = _dequantized(a.reshape(-1, a.shape[-1]), scale_a, 1)
    y = torch.nn.functional.linear(left, _dequantized(b, scale_b, _BLOCK))
    return _finished(y.view(*a.shape[:-1], b.shape[0]), bias, out_dtype)


class DequantizedScaledMm(Native):
    """Operands in float32, then torch's product: the baseline, which needs no kernel."""

    op = "scaled_mm"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the product; the output is row-major, whatever the layout of ``a``."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return dequantized_product(*arguments)

        return run


class CompiledScaledMm(InductorImplementation):
    """Operands dequantised by fused kernels, then the library's product."""

    op = "scaled_mm"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype == "float8_e4m3fn" and device.type == "cuda" and device.capability < (8, 9):
            yield f"Inductor reads no float8_e4m3fn on {device.architecture} (compute capability 8.9 has it)"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes a, b, their scales, a bias or None, and the name of the output's dtype."""
        return dequantized_product(*values)


class _Library(Native):
    """Base of torch's own operators, on row-major operands as they are."""

    op = "scaled_mm"
    returns_outputs = True
    dtype: ClassVar[str]

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if problem.dtype != self.dtype:
            yield f"dtype {problem.dtype} (supported: {self.dtype})"
        if not problem.traits["contiguous"]:
            yield "a tensor is not contiguous"
        if device.type == "cuda" and not problem.traits["aligned"]:
            yield f"a tensor is not aligned to {_ALIGNED} bytes"

    def preference(self, problem: Problem, device: Device) -> float:
        """The vendor's kernels read a byte an element, where dequantised operands are written and read in four."""
        return 1.0


def row_scale_reasons() -> Iterator[str]:
    """Why scales of rows cannot be given on a CPU, where torch 2.11 takes one scale, and newer versions any."""
    if not _takes_rows():
        yield f"scales of rows on a CPU with torch {torch.__version__} (a newer one takes them)"


@lru_cache(maxsize=1)
def _takes_rows() -> bool:
    one, scales = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(one, one.t(), scales, scales.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


class ScaledMm(_Library):
    """``torch._scaled_mm`` without fast accumulation: cuBLASLt and CUTLASS, oneDNN on a CPU."""

    name = "torch.scaled_mm"
    dtype = "float8_e4m3fn"

    def preference(self, problem: Problem, device: Device) -> float:
        """oneDNN takes 1.3 to 2.2 times as long as dequantised operands (2048 x 2048, m of 64 and 1, an AMD EPYC)."""
        return super().preference(problem, device) if device.type == "cuda" else -0.5

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if device.type != "cuda":
            if problem.scales == "block":
                yield "scales of blocks on a CPU"
            elif problem.scales != "tensor":
                yield from row_scale_reasons()
            return
        if device.capability < (8, 9):
            yield f"float8_e4m3fn on {device.architecture} (compute capability 8.9 has it)"
        if problem.n % 16 or problem.k % 16:
            yield f"n={problem.n} and k={problem.k} must be multiples of 16"
        if problem.bias and problem.out_dtype == "float32":
            yield "a bias beside an output in float32"
        if problem.scales != "tensor":
            if problem.out_dtype != "bfloat16":
                yield f"an output in {problem.out_dtype} beside scales of rows or blocks (supported: bfloat16)"
            if device.capability < (9, 0):
                yield f"scales of rows or blocks on {device.architecture} (compute capability 9.0 has them)"
        if problem.scales == "block" and (problem.n % 128 or problem.k % 512 or problem.m % 4 or problem.bias):
            yield "blocks need n a multiple of 128, k of 512 and m of 4, and no bias"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the operator; scales of a row's blocks are laid column by column, as cuBLASLt reads them."""
        n, k, kind, out_dtype = problem.n, problem.k, problem.scales, getattr(torch, problem.out_dtype)

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            a, b, scale_a, scale_b, bias, _ = arguments
            if kind != "tensor":
                scale_a, scale_b = scale_a.view(-1, scale_a.shape[-1]), scale_b.t()
            if kind == "block":
                scale_a = scale_a.t().contiguous().t()
            y: torch.Tensor = torch._scaled_mm(
                a.view(-1, k), b.t(), scale_a, scale_b, bias=bias, out_dtype=out_dtype, use_fast_accum=False
            )
            return y.view(*a.shape[:-1], n)

        return run


class IntMm(_Library):
    """``torch._int_mm``, exact in int32, then the scales and the bias."""

    name = "torch.int_mm"
    dtype = "int8"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.scales == "block":
            yield "scales of blocks lie inside the sum"
        if device.type == "cuda" and (problem.m <= 16 or problem.n % 8 or problem.k % 8):
            yield f"m={problem.m}, n={problem.n}, k={problem.k}: needs m above 16, n and k multiples of 8"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the product in int32, then one pass over it for each scale and the bias."""
        n, k, out_dtype = problem.n, problem.k, problem.out_dtype

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            a, b, scale_a, scale_b, bias, _ = arguments
            product = torch._int_mm(a.view(-1, k), b.t()).float()
            return _finished(product.view(*a.shape[:-1], n).mul_(scale_a).mul_(scale_b.view(-1)), bias, out_dtype)

        return run
