"""Products of activations and exact levels in bfloat16: AMX tiles, and AVX-512's dot products for few tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry.device import Device
from registry.problem import Problem, TensorSpec
from registry.space import Config

from .base import ELEMENT_TYPES, DenseImplementation, panel_kernel, thread_counts
from .cpu_features import missing
from .panel_products import DotProduct, PanelProduct, PanelWeight, TiledProduct, usual_tile
from .panels import fields_of, padded_group, pair_panels, pair_shifts, panels_of

WEIGHT_AMX = panel_kernel(
    "weight_amx", "weight_product.hpp", "amx.hpp", "weight_levels.hpp", "amx_block.hpp", "weight_amx.cpp"
)
WEIGHT_DOT = panel_kernel("weight_dot", "weight_product.hpp", "weight_dot.cpp")

_STEP = 32
"""Elements of K in an AMX tile of bfloat16."""
_PIECES = {"bfloat16": 1, "float16": 2, "float32": 3}
"""The number of bfloat16 whose exact sum is an activation."""


class PairedWeight(PanelWeight):
    """Levels of at most 8 bits, or a weight of bfloat16, in panels for products of pairs.

    ``bits`` is 16 for a weight of bfloat16, and 1, 2, 4 or 8 for the words of a PackedWeight.
    """

    def __init__(self, op: str, bits: int, nf4: bool = False) -> None:
        super().__init__(op, bits)
        self.nf4 = nf4

    @property
    def packed(self) -> bool:
        """True for the words of a PackedWeight."""
        return self.bits < 16

    def group_size(self, problem: Problem) -> int:
        return int(problem.group_size if self.packed else problem.k)

    def step(self, problem: Problem) -> int:
        """Elements of K in a step: 32, or a whole group of 16; no fewer than in a word."""
        size = self.group_size(problem)
        return max(min(_STEP, size), 32 // self.bits) if size < problem.k else _STEP

    def padded(self, problem: Problem) -> int:
        return padded_group(self.group_size(problem), problem.k, self.step(problem))

    def act_order(self, problem: Problem) -> bool:
        """True if ``g_idx`` gives the groups."""
        return bool(problem.dims.get("act_order", False))

    def zeros(self, problem: Problem) -> str:
        """The kind of zero points: none, integer or float."""
        if "symmetric" in problem.dims:
            return "none" if problem.symmetric else "integer"
        return str(problem.dims.get("zeros", "none"))

    def prepared(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        if not self.packed:
            return {"panels": ("weight",)}
        if self.act_order(problem):
            return {"panels": ("qweight", "g_idx"), "order": ("g_idx",)}
        return {"panels": ("qweight",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem) -> torch.Tensor:
        """int32 ``[panels, words of K, 16]``, or the order of K in which groups stand together, int32 ``[K]``."""
        if not self.packed:
            return pair_panels(values[0], self.padded(problem))
        order = torch.argsort(values[-1], stable=True) if self.act_order(problem) else None
        if name == "order":
            assert order is not None
            return order.to(torch.int32)
        fields = fields_of(values[0], self.bits, problem.k)
        fields = fields if order is None else fields[order]
        return panels_of(fields, self.group_size(problem), self.padded(problem), pair_shifts(self.bits))

    def constants(self, problem: Problem) -> dict[str, str | int | bool]:
        element, zeros = ELEMENT_TYPES[problem.dtype], self.zeros(problem)
        return {
            "ELEMENT": element,
            "ZERO": "float" if zeros == "float" else element,
            "BITS": self.bits,
            "NF4": self.nf4,
            "HAS_SCALES": self.packed,
            "HAS_ZEROS": zeros != "none",
            "HAS_ORDER": self.act_order(problem),
            "HAS_BIAS": bool(problem.dims.get("bias", False)),
            "PIECES_OF_A": _PIECES[problem.dtype],
            "STEP": self.step(problem),
            "DEPTH": 2 * self.step(problem),
            "SCALES": "GROUPS",
        }

    def arguments(self, problem: Problem) -> tuple[str, ...]:
        """Names of the first arguments: where one is not given, another name, which the constants say is not read."""
        a, scales = ("a", "scales") if self.packed else ("x", "panels")
        zeros = "zeros" if self.zeros(problem) != "none" else scales
        order = "order" if self.act_order(problem) else "panels"
        return "y", a, "panels", scales, zeros, order, "bias" if problem.dims.get("bias") else scales


class _WeightProduct(PanelProduct, DenseImplementation):
    """Base: activations as one to three exact pieces of bfloat16, summed in float32."""

    weight: PairedWeight

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides layouts: weights whose levels bfloat16 would round where the activations have more bits."""
        yield from super().unsupported(problem, device)
        if problem.dtype != "bfloat16" and (self.weight.nf4 or not self.weight.packed):
            yield f"{problem.dtype}: bfloat16 does not hold the weight's numbers"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        rows, groups = self.rows(problem, config), self.weight.groups(problem)
        width = groups * self.weight.padded(problem) * _PIECES[problem.dtype]
        return {
            "packed": TensorSpec.contiguous((rows, width), torch.bfloat16),
            "sums": TensorSpec.contiguous((rows, groups), torch.float32),
        }


class AmxWeightProduct(TiledProduct, _WeightProduct):
    """AMX tiles of bfloat16."""

    kernel = WEIGHT_AMX
    amx = "amx_bf16"
    sum_dtype = torch.float32

    def preference(self, problem: Problem, device: Device) -> float:
        # up to 10 times as fast as the dot products from two tokens on; a dense weight would be held twice, so that
        # an untuned call leaves it to torch
        return 4.0 if self.weight.packed else -1.0

    def expanded_bytes(self, problem: Problem) -> int:
        return 64 * self.weight.step(problem) if self.weight.packed else 0


class DotWeightProduct(DotProduct, _WeightProduct):
    """Dot products of pairs of bfloat16."""

    kernel = WEIGHT_DOT

    @property
    def most_sums(self) -> int:
        return 16

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing("avx512_bf16", "avx512bw"):
            yield refusal

    def default(self, problem: Problem, device: Device) -> Config:
        return {"m_tile": usual_tile(problem.m), "panels": 4, "threads": max(thread_counts(device))}

    def preference(self, problem: Problem, device: Device) -> float:
        if not self.weight.packed:
            return -1.0
        if problem.m == 1:
            # a tenth faster than tiles for one token; levels of 8 bits are two products, slower than cpp.gemv's one
            return 4.5 if self.weight.bits < 8 else 0.5
        # where there are no tiles: 4 bits of 4096x4096 on an EPYC 9005 take half of cpp.gemm's time at 16 and 64
        # tokens, and of torch's kernel at 256. Activations in two or three pieces are as many products
        return 2.5 if problem.dtype == "bfloat16" else 0.25
