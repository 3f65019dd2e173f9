"""gemm_int4 for few rows of activations: the packed weight is read once and decoded in registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch

from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts

GEMM_INT4 = kernel("gemm_int4", "gemm_int4.cpp")

BLOCKS = (64, 256, 1024)
DEPTHS = (4, 16)
MOST_ROWS = 64


class _Decoding(DenseImplementation):
    """Base: decodes each packed word in registers.

    ``block`` columns are a thread's next piece, ``depth`` words of K are read before the next columns, ``vectors``
    times a vector of columns are in flight and ``m_tile`` rows share a decoded weight.
    """

    op = "gemm_int4"

    @abstractmethod
    def rows_at_once(self, config: Config) -> int:
        """Rows of ``a`` that share each decoded weight."""

    def default(self, problem: Problem, device: Device) -> Config:
        threads = max(thread_counts(device))
        block = max((size for size in BLOCKS if size * 2 * threads <= problem.n), default=BLOCKS[0])
        return {"block": block, "depth": 16, "vectors": 2, "threads": threads}

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        tile = self.rows_at_once(config)
        rows = -(-problem.m // tile) * tile
        return {
            "wide": TensorSpec.contiguous((rows, problem.k), torch.float32),
            "sums": TensorSpec.contiguous((rows, problem.k // problem.group_size), torch.float32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        shape = (problem.m, problem.n, problem.k, problem.group_size)
        return Launch(
            GEMM_INT4,
            grid=(1,),
            args=(
                *("y", "a", "qweight", "scales", "zeros", "wide", "sums"),
                *shape,
                *(config["block"], config["depth"], config["threads"]),
            ),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "M_TILE": self.rows_at_once(config),
                "VECTORS": config["vectors"],
            },
        )


class CppGemvInt4(_Decoding):
    """The product of one row, which uses every weight once."""

    name = "cpp.gemv"

    def rows_at_once(self, config: Config) -> int:
        return 1

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m != 1:
            yield f"m={problem.m}: only one row"

    def space(self, problem: Problem, device: Device) -> Space:
        return _gemv_space(device)

    def preference(self, problem: Problem, device: Device) -> float:
        # against unpacking the whole weight for one row: 20 times faster and more
        return 2.0


class CppGemmInt4(_Decoding):
    """Few rows: a decoded weight is used by ``m_tile`` of them."""

    name = "cpp.gemm"

    def rows_at_once(self, config: Config) -> int:
        return int(config["m_tile"])

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m > MOST_ROWS:
            yield f"m={problem.m}: over {MOST_ROWS} rows the weight would be decoded too often"

    def space(self, problem: Problem, device: Device) -> Space:
        return _gemm_space(min(max(problem.m, 2), 8), device)

    def default(self, problem: Problem, device: Device) -> Config:
        m_tile = 2 if problem.m <= 2 else 4 if problem.m <= 4 else 8
        usual = super().default(problem, device)
        return {"m_tile": m_tile, **usual, "block": max(usual["block"], BLOCKS[1]), "vectors": 1 if m_tile == 8 else 2}

    def preference(self, problem: Problem, device: Device) -> float:
        return 1.0


@lru_cache(maxsize=8)
def _gemv_space(device: Device) -> Space:
    return Space(block=BLOCKS, depth=DEPTHS, vectors=[1, 2, 4], threads=thread_counts(device))


@lru_cache(maxsize=32)
def _gemm_space(m: int, device: Device) -> Space:
    """The space for ``m`` rows, from 2 to 8; more rows have the space of 8."""
    return Space(
        block=BLOCKS[1:], depth=DEPTHS, vectors=[1, 2], m_tile=[2, 4, 8], threads=thread_counts(device)
    ).require("no tile twice as high as m", lambda config: config["m_tile"] < 2 * m)
