"""Products of int8 activations, summed exactly in int32: AMX tiles, and the dot products of VNNI or AVX2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry.device import Device
from registry.problem import Problem, TensorSpec
from registry.space import Config

from .base import ELEMENT_TYPES, panel_kernel, thread_counts
from .cpu_features import cpu_features, missing
from .panel_products import PANELS, DotProduct, PanelProduct, PanelWeight, TiledProduct, usual_tile
from .panels import byte_shifts, fields_of, padded_group, panels_of

INT8_AMX = panel_kernel("int8_amx", "amx.hpp", "int8_product.hpp", "int8_levels.hpp", "amx_block.hpp", "int8_amx.cpp")
INT8_DOT = panel_kernel("int8_dot", "int8_product.hpp", "int8_dot.cpp")

_STEP = 64
"""Elements of K in an AMX tile; groups of fewer have tiles of their own depth."""
_LONGEST = 2**16
"""The longest group whose sum of int8 times levels of 8 bits fits in int32."""
_SCALE_BLOCK = 128
ISAS: Mapping[str, tuple[str, ...]] = {
    "avx512_vnni": (),
    "avx_vnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx2": ("-march=x86-64-v3",),
}
"""Instruction sets of the dot products, the best first, and the flags by which the compiler uses no other."""
MOST_SUMS = {"avx512_vnni": 24, "avx_vnni": 6, "avx2": 5}
"""The most sums of a token and 16 columns that the registers of an instruction set hold."""


class Int8Weight(PanelWeight):
    """Levels of 4 or 8 bits in panels for products of bytes."""

    @property
    def packed(self) -> bool:
        """True for the words of a PackedWeight, False for scaled_mm's int8 matrix."""
        return self.op != "scaled_mm"

    def group_size(self, problem: Problem) -> int:
        if self.packed:
            return int(problem.group_size)
        return _SCALE_BLOCK if problem.scales == "block" else int(problem.k)

    def depth(self, problem: Problem) -> int:
        """Elements of K in a step: 64, or a whole group of fewer."""
        size = self.group_size(problem)
        return min(_STEP, size) if size < problem.k else _STEP

    def padded(self, problem: Problem) -> int:
        return padded_group(self.group_size(problem), problem.k, self.depth(problem))

    def prepared(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        return {"panels": ("qweight",) if self.packed else ("b",)}

    def has_zeros(self, problem: Problem) -> bool:
        """True if there are zero points."""
        return self.packed and problem.zeros != "none"

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem) -> torch.Tensor:
        """int32 ``[panels, words of K, 16]``; levels of an int8 matrix are 128 more, as those of a PackedWeight."""
        fields = fields_of(values[0], self.bits, problem.k) if self.packed else values[0].view(torch.uint8).T ^ 0x80
        return panels_of(fields, self.group_size(problem), self.padded(problem), byte_shifts(self.bits))

    def constants(self, problem: Problem) -> dict[str, str | int | bool]:
        shared = {"HAS_ZEROS": self.has_zeros(problem), "DEPTH": self.depth(problem), "BITS": self.bits}
        if self.packed:
            element = ELEMENT_TYPES[problem.dtype]
            zero = "float" if problem.zeros == "float" else element
            kinds = {"ELEMENT": element, "SCALE": element, "ZERO": zero, "SCALES": "GROUPS"}
            return {**kinds, **shared, "STATIC": bool(problem.static)}
        scales = {"tensor": "TENSOR", "row": "GROUPS", "block": "BLOCKS"}[problem.scales]
        kinds = {"ELEMENT": ELEMENT_TYPES[problem.out_dtype], "SCALE": "float", "ZERO": "float", "SCALES": scales}
        return {**kinds, **shared, "STATIC": problem.scales == "tensor"}

    def arguments(self, problem: Problem) -> tuple[str, ...]:
        if self.packed:
            return ("y", "a", "scale_a", "panels", "scales", "zeros", "bias")
        return ("y", "a", "scale_a", "panels", "scale_b", "scale_b", "bias")  # the sixth, zero points, is not read


class _Int8Product(PanelProduct):
    """Base: activations of int8, summed in int32."""

    weight: Int8Weight

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides the instruction set: other activations and layouts."""
        yield from super().unsupported(problem, device)
        given = problem.activation if self.weight.packed else problem.dtype
        if given != "int8":
            yield f"the activations are {given}, expected int8"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"
        if self.weight.has_zeros(problem) and self.weight.group_size(problem) > _LONGEST:
            yield f"group_size={problem.group_size}: over {_LONGEST} levels times zero points may not fit in int32"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        rows, groups = self.rows(problem, config), self.weight.groups(problem)
        return {
            "packed": TensorSpec.contiguous((rows, groups * self.weight.padded(problem)), torch.int8),
            "sums": TensorSpec.contiguous((rows, groups), torch.int32),
        }


class AmxInt8Product(TiledProduct, _Int8Product):
    """AMX tiles of bytes; levels of 4 bits are expanded for 32 columns at once."""

    kernel = INT8_AMX
    amx = "amx_int8"
    sum_dtype = torch.int32

    def preference(self, problem: Problem, device: Device) -> float:
        # 1.5 times as fast as VNNI for 16 tokens, and a tenth slower for one
        return 3.0 if problem.m >= 8 else 1.5

    def expanded_bytes(self, problem: Problem) -> int:
        return 32 * self.weight.depth(problem) if self.weight.bits == 4 else 0


class DotInt8Product(DotProduct, _Int8Product):
    """Dot products of four bytes.

    ``isa`` is ``avx512_vnni``, ``avx_vnni`` or ``avx2``; the best one of this CPU if it is not given.
    """

    kernel = INT8_DOT

    def __init__(self, weight: Int8Weight, isa: str | None = None) -> None:
        super().__init__(weight)
        self.isa = isa or next((one for one in ISAS if one in cpu_features()), "avx2")

    @property
    def most_sums(self) -> int:
        return MOST_SUMS[self.isa]

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing(self.isa):
            yield refusal

    def default(self, problem: Problem, device: Device) -> Config:
        m_tile = usual_tile(problem.m)
        panels = max(count for count in PANELS if count * m_tile <= min(self.most_sums, 16))
        return {"m_tile": m_tile, "panels": panels, "threads": max(thread_counts(device))}

    def preference(self, problem: Problem, device: Device) -> float:
        return 2.0

    def flags(self) -> tuple[str, ...]:
        return ISAS[self.isa]
