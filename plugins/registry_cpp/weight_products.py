"""Products of activations and exact levels in bfloat16: AMX tiles, and AVX-512's dot products for few tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch

from registry.artifact import Built, Signature
from registry.backends.cpp import CppKernel
from registry.device import Device
from registry.implementation import Launch, Run
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts
from .cpu_features import amx_refusal, missing, require_amx
from .panels import fields_of, padded_group, pair_panels, pair_shifts, panels_of

_SHARED = ("panels.hpp", "weight_product.hpp")
WEIGHT_AMX = kernel("weight_amx", *_SHARED, "amx.hpp", "weight_levels.hpp", "amx_block.hpp", "weight_amx.cpp")
WEIGHT_DOT = kernel("weight_dot", *_SHARED, "weight_dot.cpp")

_STEP = 32
"""Elements of K in an AMX tile of bfloat16."""
_PIECES = {"bfloat16": 1, "float16": 2, "float32": 3}
"""The number of bfloat16 whose exact sum is an activation."""
BLOCKS = (64, 128, 256)
"""Tokens that pass over a piece of the weight before the next piece."""
CHUNKS = (4, 8, 16)
"""Tiles along K of a weight that are expanded, and multiplied with all tokens of a block, before the next ones."""
TILES = (1, 2, 4, 8)
"""Tokens that share the levels in a vector register."""
PANELS = (1, 2, 4)


class PairedWeight:
    """The prepared panels of one op's weight. Implementations of an op share it, and so its copies.

    ``bits`` is 16 for a weight of bfloat16, and 1, 2, 4 or 8 for the words of a PackedWeight.
    """

    def __init__(self, op: str, bits: int, nf4: bool = False) -> None:
        self.op = op
        self.bits = bits
        self.nf4 = nf4

    @property
    def packed(self) -> bool:
        """True for the words of a PackedWeight."""
        return self.bits < 16

    def group_size(self, problem: Problem) -> int:
        """Elements of K that share a scale."""
        return int(problem.group_size if self.packed else problem.k)

    def step(self, problem: Problem) -> int:
        """Elements of K in a step: 32, or a whole group of 16; no fewer than in a word."""
        size = self.group_size(problem)
        return max(min(_STEP, size), 32 // self.bits) if size < problem.k else _STEP

    def padded(self, problem: Problem) -> int:
        """Elements of a group with its padding."""
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
        """The prepared tensors and what they are made from."""
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
        """The kernels' constants for a problem."""
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


class _WeightProduct(DenseImplementation):
    """Base: ``threads`` take pieces of the weight's panels one after another."""

    kernel: ClassVar[CppKernel]
    tiled: ClassVar[bool]

    def __init__(self, weight: PairedWeight) -> None:
        self.op = weight.op
        self.weight = weight

    @property
    def prepared_by(self) -> object:
        return self.weight

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Besides layouts: weights whose levels bfloat16 would round where the activations have more bits."""
        yield from super().unsupported(problem, device)
        if problem.dtype != "bfloat16" and (self.weight.nf4 or not self.weight.packed):
            yield f"{problem.dtype}: bfloat16 does not hold the weight's numbers"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return self.weight.prepared(problem)

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight in panels, padded: about as many bytes as the weight; or the order of K."""
        return self.weight.prepare(name, values, problem)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: every config reads the same panels."""
        return {}

    @abstractmethod
    def rows(self, problem: Problem, config: Config) -> int:
        """Tokens, and rows of zeros that complete the last tile."""

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        rows, groups = self.rows(problem, config), -(-problem.k // self.weight.group_size(problem))
        width = groups * self.weight.padded(problem) * _PIECES[problem.dtype]
        return {
            "packed": TensorSpec.contiguous((rows, width), torch.bfloat16),
            "sums": TensorSpec.contiguous((rows, groups), torch.float32),
        }

    def _launch(self, problem: Problem, config: Config, more: tuple[str, ...], last: tuple[int, ...]) -> Launch:
        sizes = (problem.m, problem.n, problem.k, self.weight.group_size(problem), self.weight.padded(problem))
        return Launch(
            self.kernel,
            grid=(1,),
            args=(*self.weight.arguments(problem), "packed", "sums", *more, *sizes, *last, config["threads"]),
            constants={**self.weight.constants(problem), "TILED": self.tiled, **self.own_constants(config)},
        )

    def own_constants(self, config: Config) -> dict[str, int]:
        """The kernel's constants by the config."""
        return {}


class AmxWeightProduct(_WeightProduct):
    """AMX tiles for ``block`` tokens at a time; levels are expanded, ``chunk`` tiles along K at once."""

    name = "cpp.amx"
    kernel = WEIGHT_AMX
    tiled = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing("amx_bf16", "avx512bw") or amx_refusal():
            yield refusal

    def space(self, problem: Problem, device: Device) -> Space:
        return _amx_space(problem.m > min(BLOCKS), device)

    def default(self, problem: Problem, device: Device) -> Config:
        many, threads = problem.m > min(BLOCKS), max(thread_counts(device))
        return {"block": 128 if many else 64, "chunk": 8, "threads": threads}

    def preference(self, problem: Problem, device: Device) -> float:
        # against the dot products up to 10 times as fast from two tokens on. A dense weight is doubled: not untold
        return 4.0 if self.weight.packed else -1.0

    def rows(self, problem: Problem, config: Config) -> int:
        return 16 * -(-int(problem.m) // 16)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        threads, block = config["threads"], config["block"]
        expanded = config["chunk"] * 2 * 32 * self.weight.step(problem) if self.weight.packed else 1
        return {
            **super().scratch(problem, config, device),
            "totals": TensorSpec.contiguous((threads, block, 32), torch.float32),
            "kept": TensorSpec.contiguous((threads, block, 32), torch.float32),
            "expanded": TensorSpec.contiguous((threads, expanded), torch.int8),
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


class DotWeightProduct(_WeightProduct):
    """Dot products of bfloat16 pairs: ``m_tile`` tokens share the levels of ``panels`` times 16 columns."""

    name = "cpp.dot"
    kernel = WEIGHT_DOT
    tiled = False

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.m > TILES[-1]:
            yield f"m={problem.m}: over {TILES[-1]} tokens the weight would be decoded too often"
        if refusal := missing("avx512_bf16", "avx512bw"):
            yield refusal

    def space(self, problem: Problem, device: Device) -> Space:
        return _dot_space(min(problem.m, TILES[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        m_tile = next((tile for tile in TILES if tile >= problem.m), TILES[-1])
        return {"m_tile": m_tile, "panels": 4 if m_tile <= 4 else 2, "threads": max(thread_counts(device))}

    def preference(self, problem: Problem, device: Device) -> float:
        if not self.weight.packed:
            return -1.0
        # a tenth faster than tiles for one token; levels of 8 bits are two products, slower than cpp.gemv's one
        return 4.5 if problem.m == 1 and self.weight.bits < 8 else 0.5

    def rows(self, problem: Problem, config: Config) -> int:
        m_tile = int(config["m_tile"])
        return m_tile * -(-int(problem.m) // m_tile)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return self._launch(problem, config, (), ())

    def own_constants(self, config: Config) -> dict[str, int]:
        return {"M_TILE": config["m_tile"], "PANELS": config["panels"]}


@lru_cache(maxsize=16)
def _amx_space(many: bool, device: Device) -> Space:
    return Space(block=BLOCKS if many else BLOCKS[:1], chunk=CHUNKS, threads=thread_counts(device))


@lru_cache(maxsize=64)
def _dot_space(m: int, device: Device) -> Space:
    """The space for ``m`` tokens, at most 8; more have the space of 8."""
    return (
        Space(m_tile=TILES, panels=PANELS, threads=thread_counts(device))
        .require("no tile twice as high as m", lambda config: config["m_tile"] < 2 * m)
        .require("sums in registers", lambda config: config["m_tile"] * config["panels"] <= 16)
    )
