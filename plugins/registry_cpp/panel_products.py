"""What products with a weight in panels share: the weight, AMX tiles, and dot products."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

from .base import thread_counts
from .cpu_features import amx_refusal, missing, require_amx

BLOCKS = (64, 128, 256)
"""Tokens that pass over a piece of the weight before the next piece."""
CHUNKS = (4, 8, 16)
"""Tiles along K of a weight that are expanded, and multiplied with all tokens of a block, before the next ones."""
TILES = (1, 2, 4, 8)
"""Tokens that share the levels in a vector register."""
PANELS = (1, 2, 4)
"""Panels of 16 columns whose sums a thread holds at once."""
USUAL_TILES = TILES[:3]
"""Eight tokens a tile take 1.2 to 2 times as long as four, on an EPYC 9005: their addresses fill the registers."""


def usual_tile(m: int) -> int:
    """Tokens in a tile before tuning."""
    return next((tile for tile in USUAL_TILES if tile >= m), USUAL_TILES[-1])


class PanelWeight(ABC):
    """The prepared panels of one op's weight. Implementations of an op share it, and so its copies."""

    def __init__(self, op: str, bits: int) -> None:
        self.op = op
        self.bits = bits

    @abstractmethod
    def group_size(self, problem: Problem) -> int:
        """Elements of K that share a scale."""

    @abstractmethod
    def padded(self, problem: Problem) -> int:
        """Elements of a group with its padding."""

    def groups(self, problem: Problem) -> int:
        """The number of groups along K."""
        return -(-int(problem.k) // self.group_size(problem))

    @abstractmethod
    def prepared(self, problem: Problem) -> Mapping[str, tuple[str, ...]]:
        """The prepared tensors, and the arguments that each is made from."""

    @abstractmethod
    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem) -> torch.Tensor:
        """The prepared tensor ``name``, made from the values of its arguments."""

    @abstractmethod
    def arguments(self, problem: Problem) -> tuple[str, ...]:
        """Names of the kernel's first arguments, the output before them."""

    @abstractmethod
    def constants(self, problem: Problem) -> dict[str, str | int | bool]:
        """The kernel's constants for a problem."""


class PanelProduct(CppImplementation):
    """Base: ``threads`` take pieces of the weight's panels one after another."""

    kernel: ClassVar[CppKernel]
    tiled: ClassVar[bool]

    def __init__(self, weight: PanelWeight) -> None:
        self.op = weight.op
        self.weight = weight

    @property
    def prepared_by(self) -> object:
        return self.weight

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

    def launched(self, problem: Problem, config: Config, more: tuple[str, ...], last: tuple[int, ...]) -> Launch:
        """One launch; ``more`` scratch comes before the sizes, the ``last`` numbers after them."""
        weight = self.weight
        sizes = (problem.m, problem.n, problem.k, weight.group_size(problem), weight.padded(problem))
        return Launch(
            self.kernel,
            grid=(1,),
            args=(*weight.arguments(problem), "packed", "sums", *more, *sizes, *last, config["threads"]),
            constants={**weight.constants(problem), "TILED": self.tiled, **self.own_constants(config)},
            options={"flags": self.flags()},
        )

    def own_constants(self, config: Config) -> dict[str, int]:
        """The kernel's constants by the config."""
        return {}

    def flags(self) -> tuple[str, ...]:
        """Compiler flags besides those of every kernel."""
        return ()


class TiledProduct(PanelProduct):
    """AMX tiles for ``block`` tokens at a time; levels are expanded, ``chunk`` tiles along K at once."""

    name = "cpp.amx"
    tiled = True
    amx: ClassVar[str]
    """The instruction set of the tiles' products."""
    sum_dtype: ClassVar[torch.dtype]
    """The dtype in which tiles are summed."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if refusal := missing(self.amx, "avx512bw") or amx_refusal():
            yield refusal

    def space(self, problem: Problem, device: Device) -> Space:
        return _tiled_space(problem.m > min(BLOCKS), device)

    def default(self, problem: Problem, device: Device) -> Config:
        many, threads = problem.m > min(BLOCKS), max(thread_counts(device))
        return {"block": 128 if many else 64, "chunk": 8, "threads": threads}

    def rows(self, problem: Problem, config: Config) -> int:
        return 16 * -(-int(problem.m) // 16)

    @abstractmethod
    def expanded_bytes(self, problem: Problem) -> int:
        """Bytes of one expanded tile of 32 columns; 0 if levels are read as they stand."""

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        threads, block = config["threads"], config["block"]
        expanded = max(config["chunk"] * self.expanded_bytes(problem), 1)
        return {
            **super().scratch(problem, config, device),
            "totals": TensorSpec.contiguous((threads, block, 32), torch.float32),
            "kept": TensorSpec.contiguous((threads, block, 32), self.sum_dtype),
            "expanded": TensorSpec.contiguous((threads, expanded), torch.int8),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return self.launched(problem, config, ("totals", "kept", "expanded"), (config["block"], config["chunk"]))

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run, after the kernel has permitted tiles to this process."""
        require_amx()
        return super().bind(problem, config, device, built)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for other numbers; the tiles were permitted when the first one was bound."""
        return super().bind_loaded(problem, config, device, signature, like)


class DotProduct(PanelProduct):
    """Dot products of vectors: ``m_tile`` tokens share the levels of ``panels`` times 16 columns."""

    name = "cpp.dot"
    tiled = False

    @property
    @abstractmethod
    def most_sums(self) -> int:
        """The most sums of a token and 16 columns that the registers hold."""

    def space(self, problem: Problem, device: Device) -> Space:
        return _dot_space(min(problem.m, TILES[-1]), self.most_sums, device)

    def rows(self, problem: Problem, config: Config) -> int:
        m_tile = int(config["m_tile"])
        return m_tile * -(-int(problem.m) // m_tile)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return self.launched(problem, config, (), ())

    def own_constants(self, config: Config) -> dict[str, int]:
        return {"M_TILE": config["m_tile"], "PANELS": config["panels"]}


@lru_cache(maxsize=16)
def _tiled_space(many: bool, device: Device) -> Space:
    return Space(block=BLOCKS if many else BLOCKS[:1], chunk=CHUNKS, threads=thread_counts(device))


@lru_cache(maxsize=64)
def _dot_space(m: int, sums: int, device: Device) -> Space:
    """The space for ``m`` tokens, at most 8; more have the space of 8."""
    return (
        Space(m_tile=TILES, panels=PANELS, threads=thread_counts(device))
        .require("no tile twice as high as m", lambda config: config["m_tile"] < 2 * m)
        .require("sums in registers", lambda config: config["m_tile"] * config["panels"] <= sums)
    )
