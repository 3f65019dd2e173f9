"""torch's own kernels for a weight packed to 4 bits, ``_weight_int4pack_mm``, known as tinygemm (torchao, gpt-fast)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

from .int4 import SYMMETRIC_ZERO, swapped_nibbles, unpacked

GROUP_SIZES = (32, 64, 128, 256)
WARP = 32


def scales_and_zeros(scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """Scales and zero points as tinygemm takes them, ``[K / group_size, N, 2]``.

    tinygemm's weight is ``(q - 8) * scale + zero``, ours ``(q - zero) * scale``.
    """
    shift = torch.zeros_like(scales) if zeros is None else (SYMMETRIC_ZERO - zeros) * scales
    return torch.stack([scales, shift], dim=-1).contiguous()


class _Tinygemm(Implementation):
    op = "gemm_int4"
    returns_outputs = True
    any_size = True
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if problem.dtype not in self.dtypes:
            yield f"dtype is {problem.dtype}, expected {' or '.join(self.dtypes)}"
        if problem.group_size not in GROUP_SIZES:
            yield f"group_size is {problem.group_size}, expected one of {', '.join(map(str, GROUP_SIZES))}"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"packed": ("qweight",), "scales_and_zeros": ("scales", "zeros")}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight in the kernel's order, or scales and zero points side by side."""
        if name == "scales_and_zeros":
            return scales_and_zeros(*values)
        return self.repacked(values[0], config)

    @abstractmethod
    def repacked(self, qweight: torch.Tensor, config: Config) -> torch.Tensor:
        """int32 ``[K / 8, N]`` in the kernel's order."""

    @abstractmethod
    def multiply(self, a: torch.Tensor, packed: torch.Tensor, group_size: int, scales: torch.Tensor) -> torch.Tensor:
        """``[M, K]`` times the packed weight, ``[M, N]``."""

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        multiply, k, n, group_size = self.multiply, problem.k, problem.n, problem.group_size

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            a, packed, scales = arguments[0], arguments[-2], arguments[-1]
            y = multiply(a.reshape(-1, k).contiguous(), packed, group_size, scales)
            return y if a.dim() == 2 else y.reshape(*a.shape[:-1], n)

        return run


class CudaTinygemm(_Tinygemm):
    """Tensor cores on a weight packed for them. ``inner_k_tiles``: 16-wide tiles of K that a thread loads at once."""

    name = "torch.tinygemm"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides the dtype and the group size: tile sizes, and a GPU that has the instructions."""
        yield from super().unsupported(problem, device)
        if not problem.traits["aligned"]:
            yield "it reads 16 bytes at a time, and a tensor is not aligned to 16 bytes"
        if device.capability < (8, 0):
            yield f"it needs compute capability 8.0, this is {device.architecture}"
        if problem.n % 8:
            yield f"n={problem.n} is no multiple of 8"
        if not self._inner_k_tiles(problem):
            yield f"k={problem.k} is no multiple of 32"

    def space(self, problem: Problem, device: Device) -> Space:
        """Packings whose tiles divide K."""
        return _space(self._inner_k_tiles(problem) or (2,))

    def default(self, problem: Problem, device: Device) -> Config:
        """The largest packing, as in gpt-fast."""
        return {"inner_k_tiles": (self._inner_k_tiles(problem) or (2,))[-1]}

    def preference(self, problem: Problem, device: Device) -> float:
        """Made for few rows: on an H200 it beats a bfloat16 product up to 8 rows, and loses from 16."""
        return 0.5 if problem.m <= 16 else -2.0

    def repacked(self, qweight: torch.Tensor, config: Config) -> torch.Tensor:
        """The weight in the order of the tensor cores, int32 ``[N / 8, K / (16 * tiles), 32, tiles / 2]``."""
        tiles = config["inner_k_tiles"]
        if qweight.device.type == "meta":
            n, k = qweight.shape[1], qweight.shape[0] * 8
            return qweight.new_empty((n // 8, k // (16 * tiles), WARP, tiles // 2))
        packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack(swapped_nibbles(qweight), tiles)
        return packed

    def multiply(self, a: torch.Tensor, packed: torch.Tensor, group_size: int, scales: torch.Tensor) -> torch.Tensor:
        """``[M, K]`` times the packed weight, ``[M, N]``."""
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm(a, packed, group_size, scales)
        return y

    @staticmethod
    def _inner_k_tiles(problem: Problem) -> tuple[int, ...]:
        return tuple([tiles for tiles in (2, 4, 8) if problem.k % (tiles * 16) == 0])


@lru_cache(maxsize=8)
def _space(tiles: tuple[int, ...]) -> Space:
    return Space(inner_k_tiles=tiles)


class CpuTinygemm(_Tinygemm):
    """The CPU's kernel of the same name: AVX-512, AVX2 or plain C++, as the machine allows."""

    name = "torch.tinygemm_cpu"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16")

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides the dtype and the group size: the width of its blocks."""
        yield from super().unsupported(problem, device)
        if problem.n % 16:
            yield f"n={problem.n} is no multiple of 16"

    def preference(self, problem: Problem, device: Device) -> float:
        """The kernel reads a quarter of the bytes that a bfloat16 product reads."""
        return 0.5

    def repacked(self, qweight: torch.Tensor, config: Config) -> torch.Tensor:
        """The weight in the order of the CPU's kernel, uint8 ``[N, K / 2]``."""
        if qweight.device.type == "meta":
            return qweight.new_empty((qweight.shape[1], qweight.shape[0] * 4), dtype=torch.uint8)
        packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpacked(qweight).T.contiguous(), 1)
        return packed

    def multiply(self, a: torch.Tensor, packed: torch.Tensor, group_size: int, scales: torch.Tensor) -> torch.Tensor:
        """``[M, K]`` times the packed weight, ``[M, N]``."""
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(a, packed, group_size, scales)
        return y
