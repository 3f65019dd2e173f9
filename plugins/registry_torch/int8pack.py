"""torch's own kernel for a weight of 8 bits with one scale a column, ``_weight_int8pack_mm`` (gpt-fast, torchao)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

_MIDDLE = 0x80808080 - 2**32
"""Taken off by an exclusive or, it makes 0 to 255 the int8 -128 to 127."""

_ALIGNMENT = 64
"""Bytes; torch's kernel ends the process when activations start elsewhere."""


class CpuInt8Pack(Implementation):
    """The CPU's kernel: AVX-512, AVX2, NEON or plain C++, as the machine allows."""

    op = "gemm_int8"
    name = "torch.int8pack"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides the format: sizes for which torch 2.13's kernel computes wrong numbers, or reads past its inputs."""
        if problem.k % 32:
            yield f"k={problem.k} is no multiple of 32"
        if problem.n % 16:
            yield f"n={problem.n} is no multiple of 16"
        if problem.group_size < problem.k:
            yield f"group_size={problem.group_size}: it takes one scale a column"
        if problem.zeros != "none":
            yield "it takes no zero points"
        if problem.act_order:
            yield "it takes no act-order"

    def preference(self, problem: Problem, device: Device) -> float:
        """The kernel reads half of the bytes of a bfloat16 product; it is for rows that a core's caches hold."""
        return 0.5

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"rows": ("qweight",), "column": ("scales",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """int8 ``[N, K]`` less the middle, and scales ``[N]``."""
        if name == "column":
            column: torch.Tensor = values[0][0].contiguous()
            return column
        words: torch.Tensor = (values[0] ^ _MIDDLE).T.contiguous()
        return words.view(torch.int8)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        multiply, k, n = torch.ops.aten._weight_int8pack_mm.default, problem.k, problem.n

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            a, bias, rows, column = arguments[0], arguments[9], arguments[-2], arguments[-1]
            given = a.reshape(-1, k).contiguous()
            if given.data_ptr() % _ALIGNMENT:
                given = given.clone()
            y: torch.Tensor = multiply(given, rows, column)
            if bias is not None:
                y += bias
            return y if a.dim() == 2 else y.reshape(*a.shape[:-1], n)

        return run
