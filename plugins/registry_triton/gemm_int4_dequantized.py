"""4-bit weight-only matrix product for long prefill: the weight written out, then cuBLAS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.artifact import Built, Signature
from registry.backends.estimate import fits_registers
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors

from . import int4
from .kernels import gemm_int4_dequantized as kernels
from .support import KEPT, options

WEIGHT = "weight"


class DequantizedInt4(TritonImplementation):
    """The weight in the activations' dtype, ``[K, N]`` in scratch, by one kernel; then ``torch.mm``.

    It is what torch.compile makes of the reference, but compiled once for all sizes. Reading and writing the weight
    costs as much whatever M is, so that it is for many rows. Scratch: ``2 * K * N`` bytes.
    """

    op = "gemm_int4"
    name = "triton.dequantized"
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from int4.reasons(problem, device, 16)

    def space(self, problem: Problem, device: Device) -> Space:
        """The tile of the weight that a program writes, and its warps."""
        return _space(_rows(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """32 by 128, or the shorter tile that the groups allow."""
        return {"BLOCK_K": max(block for block in _rows(problem) if block <= 32), "BLOCK_N": 128, "num_warps": 4}

    def preference(self, problem: Problem, device: Device) -> float:
        """From some 160 rows on faster than products that expand the weight anew for each tile of rows."""
        return 0.9 if problem.m > 144 else -0.25

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {WEIGHT: TensorSpec.contiguous((problem.k, problem.n), problem.torch_dtype)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        grid = (-(-problem.n // config["BLOCK_N"]), -(-problem.k // config["BLOCK_K"]))
        return Launch(
            kernels.dequantize,
            grid=grid,
            args=(WEIGHT, "qweight", "scales", "zeros", problem.n, problem.k),
            constants={
                "GROUP": int4.group(problem),
                "PER_CHANNEL": int4.per_channel(problem),
                "BLOCK_N": config["BLOCK_N"],
                "BLOCK_K": config["BLOCK_K"],
            },
            options=options(config),
        )

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return _Multiplied(super().bind(problem, config, device, built), problem)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        written = like.written if isinstance(like, _Multiplied) else None
        found = super().bind_loaded(problem, config, device, signature, written)
        return None if found is None else _Multiplied(found, problem)


class _Multiplied:
    """Writes the weight by ``written``, then multiplies."""

    def __init__(self, written: Run, problem: Problem) -> None:
        self.written = written
        self._n, self._k = int(problem.n), int(problem.k)

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        self.written(outputs, arguments, scratch)
        torch.mm(arguments[0].view(-1, self._k), scratch[0], out=outputs[0].view(-1, self._n))


def _rows(problem: Problem) -> tuple[int, ...]:
    return int4.blocks_k(problem, (16, 32, 64, 128)) or (16,)


@lru_cache(maxsize=KEPT)
def _space(blocks_k: tuple[int, ...], device: Device) -> Space:
    space = Space(BLOCK_K=blocks_k, BLOCK_N=[64, 128, 256], num_warps=[4, 8])

    def registers(config: Config) -> bool:
        return fits_registers(config["BLOCK_K"] * config["BLOCK_N"], config["num_warps"], device, share=0.8)

    return space.require("a tile fits in registers", registers)
