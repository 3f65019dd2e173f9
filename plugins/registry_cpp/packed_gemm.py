"""Products with packed weights for few rows of activations: a word is read once and decoded in registers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch

from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts

PACKED_GEMM = kernel("packed_gemm", "packed_gemm.cpp")

BLOCKS = (64, 256, 1024)
DEPTHS = (4, 16)
MOST_ROWS = 64


class _PackedColumns(DenseImplementation):
    """Base: decodes each packed word in registers.

    ``block`` columns are a thread's next piece, ``depth`` words of K are read before the next columns, ``vectors``
    times 16 columns are in flight and ``m_tile`` rows share a decoded weight.
    """

    def __init__(self, op: str, bits: int, nf4: bool = False) -> None:
        self.op = op
        self.bits = bits
        self.nf4 = nf4
        self.per_word = 32 // bits

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.group_size < problem.k and problem.group_size % self.per_word:
            yield f"group_size={problem.group_size} is no multiple of {self.per_word}, the elements of a word"

    @abstractmethod
    def rows_at_once(self, config: Config) -> int:
        """Rows of ``a`` that share each decoded weight."""

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"sorted": ("qweight", "g_idx"), "order": ("g_idx",)} if problem.act_order else {}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The order of K in which groups stand together, int32 [K], or the weight's words in that order."""
        order = torch.argsort(values[-1], stable=True)
        if name == "order":
            return order.to(torch.int32)
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32, device=order.device)
        fields = ((values[0].unsqueeze(1) >> shifts[:, None]) & (2**self.bits - 1)).flatten(0, 1)[order]
        padded = torch.nn.functional.pad(fields, (0, 0, 0, -fields.shape[0] % self.per_word))
        # no two fields have a bit in common
        return (padded.view(-1, self.per_word, fields.shape[1]) << shifts[:, None]).sum(1, dtype=torch.int32)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: every config reads the same order."""
        return {}

    def default(self, problem: Problem, device: Device) -> Config:
        threads = max(thread_counts(device))
        block = max((size for size in BLOCKS if size * 2 * threads <= problem.n), default=BLOCKS[0])
        return {"block": block, "depth": 16, "vectors": 2, "threads": threads}

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        tile = self.rows_at_once(config)
        rows = -(-problem.m // tile) * tile
        padded = -(-problem.k // self.per_word) * self.per_word
        return {
            "wide": TensorSpec.contiguous((rows, padded), torch.float32),
            "sums": TensorSpec.contiguous((rows, -(-problem.k // problem.group_size)), torch.float32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        element = ELEMENT_TYPES[problem.dtype]
        weight, order = ("sorted", "order") if problem.act_order else ("qweight", "g_idx")
        return Launch(
            PACKED_GEMM,
            grid=(1,),
            args=(
                *("y", "a", weight, "scales", "zeros", order, "bias", "wide", "sums"),
                *(problem.m, problem.n, problem.k, problem.group_size),
                *(config["block"], config["depth"], config["threads"]),
            ),
            constants={
                "ELEMENT": element,
                "ZERO": "float" if problem.zeros == "float" else element,
                "BITS": self.bits,
                "NF4": self.nf4,
                "M_TILE": self.rows_at_once(config),
                "VECTORS": config["vectors"],
            },
        )


class CppGemv(_PackedColumns):
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


class CppGemm(_PackedColumns):
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
