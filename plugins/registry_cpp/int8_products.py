"""Products of int8 activations, summed exactly in int32: AMX tiles, and the dot products of VNNI or AVX2."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch

from registry.artifact import Built, Signature
from registry.backends.cpp import CppImplementation, CppKernel
from registry.device import Device
from registry.implementation import Launch, Run
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from .base import ELEMENT_TYPES, kernel, thread_counts
from .cpu_features import amx_refusal, cpu_features, missing, require_amx
from .panels import byte_shifts, fields_of, padded_group, panels_of

INT8_AMX = kernel(
    "int8_amx", "panels.hpp", "amx.hpp", "int8_product.hpp", "int8_levels.hpp", "amx_block.hpp", "int8_amx.cpp"
)
INT8_DOT = kernel("int8_dot", "panels.hpp", "int8_product.hpp", "int8_dot.cpp")

_STEP = 64
"""Elements of K in an AMX tile; groups of fewer have tiles of their own depth."""
_LONGEST = 2**16
"""The longest group whose sum of int8 times levels of 8 bits fits in int32."""
_SCALE_BLOCK = 128
BLOCKS = (64, 128, 256)
"""Tokens that pass over a piece of the weight before the next piece."""
CHUNKS = (4, 8, 16)
"""Tiles along K of a weight that are expanded, and multiplied with all tokens of a block, before the next ones."""
TILES = (1, 2, 4, 8)
"""Tokens that share the levels in a vector register."""
PANELS = (1, 2, 4)

ISAS: Mapping[str, tuple[str, ...]] = {
    "avx512_vnni": (),
    "avx_vnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx2": ("-march=x86-64-v3",),
}
"""Instruction sets of the dot products, the best first, and the flags by which the compiler uses no other."""
MOST_SUMS = {"avx512_vnni": 24, "avx_vnni": 6, "avx2": 5}
"""The most sums of a token and 16 columns that the registers of an instruction set hold."""


class Int8Weight:
    """The prepared panels of one op's weight. Implementations of an op share it, and so its copies."""

    def __init__(self, op: str, bits: int) -> None:
        self.op = op
        self.bits = bits

    @property
    def packed(self) -> bool:
        """True for the words of a PackedWeight, False for scaled_mm's int8 matrix."""
        return self.op != "scaled_mm"

    def group_size(self, problem: Problem) -> int:
        """Elements of K that share a scale."""
        if self.packed:
            return int(problem.group_size)
        return _SCALE_BLOCK if problem.scales == "block" else int(problem.k)

    def depth(self, problem: Problem) -> int:
        """Elements of K in a step: 64, or a whole group of fewer."""
        size = self.group_size(problem)
        return min(_STEP, size) if size < problem.k else _STEP

    def padded(self, problem: Problem) -> int:
        """Elements of a group with its padding."""
        return padded_group(self.group_size(problem), problem.k, self.depth(problem))

    def prepare(self, values: tuple[Any, ...], problem: Problem) -> torch.Tensor:
        """int32 ``[panels, words of K, 16]``; levels of an int8 matrix are 128 more, as those of a PackedWeight."""
        fields = fields_of(values[0], self.bits, problem.k) if self.packed else values[0].view(torch.uint8).T ^ 0x80
        return panels_of(fields, self.group_size(problem), self.padded(problem), byte_shifts(self.bits))

    def constants(self, problem: Problem) -> dict[str, str | int | bool]:
        """The kernels' constants for a problem."""
        if self.packed:
            element = ELEMENT_TYPES[problem.dtype]
            zero = "float" if problem.zeros == "float" else element
            kinds: dict[str, str | int | bool] = {
                "ELEMENT": element,
                "SCALE": element,
                "ZERO": zero,
                "SCALES": "GROUPS",
            }
            return kinds | {"BITS": self.bits, "STATIC": bool(problem.static)}
        kind = {"tensor": "TENSOR", "row": "GROUPS", "block": "BLOCKS"}[problem.scales]
        return {
            "ELEMENT": ELEMENT_TYPES[problem.out_dtype],
            "SCALE": "float",
            "ZERO": "float",
            "SCALES": kind,
            "BITS": 8,
            "STATIC": problem.scales == "tensor",
        }

    def arguments(self, problem: Problem) -> tuple[tuple[str, ...], bool]:
        """Names of the first arguments, and whether the fifth, the zero points, counts."""
        if self.packed:
            return ("y", "a", "scale_a", "panels", "scales", "zeros", "bias"), problem.zeros != "none"
        return ("y", "a", "scale_a", "panels", "scale_b", "scale_b", "bias"), False


class _Int8Product(CppImplementation):
    """Base: ``threads`` take pieces of the weight's panels one after another."""

    kernel: ClassVar[CppKernel]
    tiled: ClassVar[bool]

    def __init__(self, weight: Int8Weight) -> None:
        self.op = weight.op
        self.weight = weight

    @property
    def prepared_by(self) -> object:
        return self.weight

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides the instruction set: other activations and layouts."""
        yield from super().unsupported(problem, device)
        given = problem.activation if self.weight.packed else problem.dtype
        if given != "int8":
            yield f"the activations are {given}, expected int8"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"
        if self.weight.packed and problem.zeros != "none" and self.weight.group_size(problem) > _LONGEST:
            yield f"group_size={problem.group_size}: over {_LONGEST} levels times zero points may not fit in int32"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"panels": ("qweight",) if self.weight.packed else ("b",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight in panels, padded: about as many bytes as the weight."""
        return self.weight.prepare(values, problem)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: every config reads the same panels."""
        return {}

    @abstractmethod
    def rows(self, problem: Problem, config: Config) -> int:
        """Tokens, and rows of zeros that complete the last tile."""

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        rows, groups = self.rows(problem, config), -(-problem.k // self.weight.group_size(problem))
        return {
            "packed": TensorSpec.contiguous((rows, groups * self.weight.padded(problem)), torch.int8),
            "sums": TensorSpec.contiguous((rows, groups), torch.int32),
        }

    def _launch(self, problem: Problem, config: Config, more: tuple[str, ...], last: tuple[int, ...]) -> Launch:
        names, has_zeros = self.weight.arguments(problem)
        sizes = (problem.m, problem.n, problem.k, self.weight.group_size(problem), self.weight.padded(problem))
        constants = {"HAS_ZEROS": has_zeros, "DEPTH": self.weight.depth(problem), "TILED": self.tiled}
        return Launch(
            self.kernel,
            grid=(1,),
            args=(*names, "packed", "sums", *more, *sizes, *last, config["threads"]),
            constants={**self.weight.constants(problem), **constants, **self.own_constants(config)},
            options={"flags": self.flags()},
        )

    def own_constants(self, config: Config) -> dict[str, int]:
        """The kernel's constants by the config."""
        return {}

    def flags(self) -> tuple[str, ...]:
        """More compiler flags."""
        return ()


class AmxInt8Product(_Int8Product):
    """AMX tiles for ``block`` tokens at a time; levels of 4 bits are expanded for 32 columns at once."""

    name = "cpp.amx"
    kernel = INT8_AMX
    tiled = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing("amx_int8", "avx512bw") or amx_refusal():
            yield refusal

    def space(self, problem: Problem, device: Device) -> Space:
        return _amx_space(problem.m > min(BLOCKS), device)

    def default(self, problem: Problem, device: Device) -> Config:
        many, threads = problem.m > min(BLOCKS), max(thread_counts(device))
        return {"block": 128 if many else 64, "chunk": 8, "threads": threads}

    def preference(self, problem: Problem, device: Device) -> float:
        # 1.5 times as fast as VNNI for 16 tokens, and a tenth slower for one
        return 3.0 if problem.m >= 8 else 1.5

    def rows(self, problem: Problem, config: Config) -> int:
        return 16 * -(-int(problem.m) // 16)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        threads, block = config["threads"], config["block"]
        expanded = config["chunk"] * 2 * 16 * self.weight.depth(problem) if self.weight.bits == 4 else 0
        return {
            **super().scratch(problem, config, device),
            "totals": TensorSpec.contiguous((threads, block, 32), torch.float32),
            "kept": TensorSpec.contiguous((threads, block, 32), torch.int32),
            "expanded": TensorSpec.contiguous((threads, max(expanded, 1)), torch.int8),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return self._launch(problem, config, ("totals", "kept", "expanded"), (config["block"], config["chunk"]))

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, after the kernel has permitted tiles to this process."""
        require_amx()
        return super().bind(problem, config, device, built)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for other numbers; the tiles were permitted when the first one was bound."""
        return super().bind_loaded(problem, config, device, signature, like)


class DotInt8Product(_Int8Product):
    """Dot products of four bytes: ``m_tile`` tokens share the levels of ``panels`` times 16 columns.

    ``isa`` is ``avx512_vnni``, ``avx_vnni`` or ``avx2``; the best one of this CPU if it is not given.
    """

    name = "cpp.dot"
    kernel = INT8_DOT
    tiled = False

    def __init__(self, weight: Int8Weight, isa: str | None = None) -> None:
        super().__init__(weight)
        self.isa = isa or next((one for one in ISAS if one in cpu_features()), "avx2")

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing(self.isa):
            yield refusal

    def space(self, problem: Problem, device: Device) -> Space:
        return _dot_space(min(problem.m, TILES[-1]), MOST_SUMS[self.isa], device)

    def default(self, problem: Problem, device: Device) -> Config:
        sums = MOST_SUMS[self.isa]
        high = [tile for tile in TILES if tile <= sums]
        m_tile = next((tile for tile in high if tile >= problem.m), high[-1])
        panels = max(count for count in PANELS if count * m_tile <= min(sums, 16))
        return {"m_tile": m_tile, "panels": panels, "threads": max(thread_counts(device))}

    def preference(self, problem: Problem, device: Device) -> float:
        return 2.0

    def rows(self, problem: Problem, config: Config) -> int:
        m_tile = int(config["m_tile"])
        return m_tile * -(-int(problem.m) // m_tile)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return self._launch(problem, config, (), ())

    def own_constants(self, config: Config) -> dict[str, int]:
        return {"M_TILE": config["m_tile"], "PANELS": config["panels"]}

    def flags(self) -> tuple[str, ...]:
        return ISAS[self.isa]


@lru_cache(maxsize=16)
def _amx_space(many: bool, device: Device) -> Space:
    return Space(block=BLOCKS if many else BLOCKS[:1], chunk=CHUNKS, threads=thread_counts(device))


@lru_cache(maxsize=64)
def _dot_space(m: int, sums: int, device: Device) -> Space:
    """The space for ``m`` tokens, at most 8; more have the space of 8."""
    return (
        Space(m_tile=TILES, panels=PANELS, threads=thread_counts(device))
        .require("no tile twice as high as m", lambda config: config["m_tile"] < 2 * m)
        .require("sums in registers", lambda config: config["m_tile"] * config["panels"] <= sums)
    )
