"""Base of the kernels over one packing: groups along K, tiles that scales serve, prepared order, reasons."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Problem
from registry.backends.estimate import fits_shared, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import common_reasons

_CHANNEL = 2**30
_MOST_SCALES = 2**31
_LEAST_DOT = 16


class PackedGemm(TritonImplementation):
    """Base of the forms: ``a`` times a weight of ``bits`` bits, of an op of ``registry.contracts.packed_gemm``."""

    def __init__(self, op: str, bits: int, nf4: bool = False) -> None:
        self.op = op
        self.bits = bits
        self.nf4 = nf4
        self.per_word = 32 // bits

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from common_reasons(problem, device)
        if not self.blocks(problem):
            yield f"group_size={problem.group_size} is too short for a block of words of {self.per_word}"
        groups = 1 if self.per_channel(problem) else -(-problem.k // problem.group_size)
        if groups * problem.n >= _MOST_SCALES:
            yield f"{groups} x {problem.n} scales (limit {_MOST_SCALES - 1})"

    @abstractmethod
    def blocks(self, problem: Problem) -> tuple[int, ...]:
        """The blocks along K that the form can take; none where the groups are too short for it."""

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"sorted": ("qweight", "g_idx"), "order": ("g_idx",)} if problem.act_order else {}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The order of K in which groups stand together, int32 [K], or the weight's words in that order."""
        order = torch.argsort(values[-1], stable=True)
        return order.to(torch.int32) if name == "order" else self._sorted(values[0], order)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: every config reads the same order."""
        return {}

    def per_channel(self, problem: Problem) -> bool:
        """Whether a column has one scale."""
        return bool(problem.group_size >= problem.k)

    def within_groups(self, problem: Problem, wanted: Sequence[int], least: int) -> tuple[int, ...]:
        """Blocks of ``wanted``, of at least ``least``, that lie within a group and are no longer than K needs."""
        usable = [block for block in wanted if block >= least]
        if self.per_channel(problem):
            return tuple([block for block in usable if block <= next_power_of_2(problem.k)]) or (min(usable),)
        return tuple([block for block in usable if problem.group_size % block == 0])

    def operands(self, problem: Problem) -> tuple[str, ...]:
        """Names of the weight's tensors and the bias, as the kernels take them."""
        weight, order = ("sorted", "order") if problem.act_order else ("qweight", "g_idx")
        return (weight, "scales", "zeros", order)

    def format_constants(self, problem: Problem) -> dict[str, Any]:
        """How the weight is decoded, by name."""
        middle = 0.0 if self.nf4 else 2.0 ** (self.bits - 1) if self.bits > 1 else 0.5
        group = _CHANNEL if self.per_channel(problem) else problem.group_size
        return {"BITS": self.bits, "NF4": self.nf4, "MIDDLE": middle, "GROUP": group}

    def loop_constants(self, problem: Problem, config: Config, bias: bool) -> dict[str, Any]:
        """The constants of every kernel with a loop over K, by name; ``bias``: whether it is added."""
        return {
            **self.format_constants(problem),
            "PER_CHANNEL": self.per_channel(problem),
            "EVEN_K": problem.k % config["BLOCK_K"] == 0,
            "BIAS": bias,
            "BLOCK_N": config["BLOCK_N"],
            "BLOCK_K": config["BLOCK_K"],
            "STAGES": config["num_stages"],
        }

    def _sorted(self, qweight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The words of K in ``order``; the last word's bits after K are 0."""
        shifts = torch.arange(0, 32, self.bits, dtype=torch.int32, device=qweight.device)
        fields = ((qweight.unsqueeze(1) >> shifts[:, None]) & (2**self.bits - 1)).flatten(0, 1)
        fields = fields[order]
        padded = torch.nn.functional.pad(fields, (0, 0, 0, -fields.shape[0] % self.per_word))
        words = padded.view(-1, self.per_word, qweight.shape[1])
        result = torch.zeros_like(words[:, 0])
        for place in range(self.per_word):
            result |= words[:, place] << (self.bits * place)
        return result


def precision(problem: Problem) -> dict[str, str]:
    """The ``input_precision`` of ``tl.dot``: "ieee" for float32, since tf32 keeps 10 of its 23 bits."""
    return {"PRECISION": "ieee" if problem.dtype == "float32" else "tf32"}


def least_dot(per_word: int) -> int:
    """The shortest block along K for the tensor cores: their 16, and whole words of ``per_word`` elements."""
    return max(_LEAST_DOT, per_word)


def fits(size: int, config: Config, block_m: int, per_word: int, device: Device) -> bool:
    """Whether the pipelined tiles of a and of packed words, and the dequantised tile, fit in shared memory.

    ``size`` is the bytes of an activation.
    """
    tile_a = block_m * config["BLOCK_K"] * size
    packed = config["BLOCK_K"] // per_word * config["BLOCK_N"] * 4
    weight = config["BLOCK_K"] * config["BLOCK_N"] * size
    ahead = max(config["num_stages"] - 1, 1)
    # what Triton 3.9 reports for wgmma to the byte: one more tile of a than of packed words
    return fits_shared((ahead + 1) * tile_a + ahead * packed + weight, device)
