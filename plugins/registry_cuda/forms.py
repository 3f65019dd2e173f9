"""How rows are laid over threads: what each form can hold, what it tunes, and the constants that it compiles with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Problem, Space

from .number import vector_width

_WIDEST = 16
# a thread's part of a row: 32 registers of raw elements, which leaves as many for arithmetic at 1024 threads a block
_THREAD_BYTES = 128
_GRID_LIMIT = 2**31 - 1
# columns are counted in 32 bits, and a last tile may begin before the end of a row
_MOST_COLS = 2**31 - 2**18
_THREADS = (32, 64, 128, 256, 512, 1024)
_KEPT = 4096


class RowLength(NamedTuple):
    """All of a row that a form depends on; ``aligned``: whether tensors start at multiples of 16 bytes."""

    cols: int
    itemsize: int
    aligned: bool

    @classmethod
    def of(cls, problem: Problem) -> RowLength:
        """A row of the problem."""
        return cls(problem.cols, problem.torch_dtype.itemsize, problem.traits["aligned"])

    @property
    def widest(self) -> int:
        """Elements of the widest load that the length of a row allows, alignment aside."""
        return math.gcd(self.cols, _WIDEST // self.itemsize)

    def vector(self, vector_bytes: int) -> int:
        """Elements of one load of at most ``vector_bytes``: a power of two that divides the row; 1 when not aligned."""
        return vector_width(self.itemsize, self.aligned, vector_bytes, self.cols)


@dataclass(frozen=True)
class Shape:
    """``rows`` of a block, each by ``threads`` in every block of its ``cluster``, ``items`` vectors a thread."""

    threads: int
    rows: int
    cluster: int
    items: int
    vector: int


class Form(ABC):
    """One way to lay rows over threads."""

    name: str
    widest_cluster = 1

    @abstractmethod
    def preference(self, problem: Problem) -> float:
        """The declared preference, as ``Implementation.preference`` describes."""

    @abstractmethod
    def space(self, length: RowLength) -> Space:
        """The tunable parameters, whatever the alignment; without configurations where the form does not fit."""

    @abstractmethod
    def shape(self, length: RowLength, config: Config) -> Shape:
        """A config's threads, rows, cluster, items and vector."""

    @abstractmethod
    def misfit(self, length: RowLength) -> str:
        """Why no config fits these rows, for a person to read; empty when one does."""

    def cost(self, length: RowLength, config: Config) -> tuple[float, float]:
        """Least for the default: the config nearest to 64 bytes a thread and 128 threads a block."""
        shape = self.shape(length, config)
        part = shape.items * shape.vector * length.itemsize
        # wide vectors first; then the distance in powers of two
        return -shape.vector, abs(math.log2(part / 64)) + abs(math.log2(shape.threads * shape.rows / 128)) / 4

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Every reason why this form cannot run the problem."""
        if problem.cols < 1:
            yield "rows are empty"
        elif misfit := self.misfit(RowLength.of(problem)):
            yield misfit
        elif problem.cols > _MOST_COLS:
            yield f"a row of {problem.cols} is longer than {_MOST_COLS}"
        if problem.rows * self.widest_cluster > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"


class Row(Form):
    """A row in the registers of one block, several short rows a block."""

    name = "cuda.row"

    def preference(self, problem: Problem) -> float:
        """A row in registers takes the time of Triton's rows on an H200, within 5%."""
        return 0.5

    def space(self, length: RowLength) -> Space:
        space = Space(threads=_THREADS, rows=[1, 2, 4, 8, 16], vector_bytes=_vector_bytes(length))
        space = space.require(
            f"at most {_THREAD_BYTES} bytes a thread", lambda config: _part_bytes(length, config) <= _THREAD_BYTES
        )
        space = space.require("a vector for every second thread", lambda config: _all_busy(length, config))
        return space.require(
            "at most 512 threads when a block has several rows",
            lambda config: config["rows"] == 1 or config["threads"] * config["rows"] <= 512,
        )

    def shape(self, length: RowLength, config: Config) -> Shape:
        vector = length.vector(config["vector_bytes"])
        return Shape(config["threads"], config["rows"], 1, _items(length.cols, config["threads"] * vector), vector)

    def misfit(self, length: RowLength) -> str:
        most = _THREADS[-1] * _THREAD_BYTES // length.itemsize
        return f"a row of {length.cols} does not fit in registers (limit {most})" if length.cols > most else ""


class Cluster(Form):
    """A row in the registers of a cluster of blocks, reduced through distributed shared memory (as QuACK does):
    a long row is read once."""

    name = "cuda.cluster"
    widest_cluster = 8
    shortest_bytes = 16 * 1024

    def preference(self, problem: Problem) -> float:
        """A few long rows, which leave most SMs idle otherwise, and vocabularies in fp32, where reading once pays.

        H200, softmax, µs of this and the next best: 1 x 128256 bf16 7.0 and 7.4, 2048 x 128256 fp32 606 and 705,
        but 4096 x 128256 bf16 829 and 634.
        """
        if problem.cols < 24_576:
            return 0.6
        if problem.rows <= 4:
            return 3.0
        return 1.75 if problem.torch_dtype.itemsize == 4 and problem.cols >= 65_536 else 0.6

    def space(self, length: RowLength) -> Space:
        space = Space(cluster=[2, 4, 8], threads=_THREADS[2:], vector_bytes=_vector_bytes(length)[-1:])
        space = space.require(
            f"at most {_THREAD_BYTES} bytes a thread", lambda config: _part_bytes(length, config) <= _THREAD_BYTES
        )
        return space.require("a vector for every second thread", lambda config: _all_busy(length, config))

    def shape(self, length: RowLength, config: Config) -> Shape:
        vector = length.vector(config["vector_bytes"])
        columns = _slice(length.cols, config["cluster"], vector)
        return Shape(config["threads"], 1, config["cluster"], _items(columns, config["threads"] * vector), vector)

    def misfit(self, length: RowLength) -> str:
        most = self.widest_cluster * _THREADS[-1] * _THREAD_BYTES // length.itemsize
        too_long = length.cols > most
        return f"a row of {length.cols} does not fit in the registers of a cluster (limit {most})" if too_long else ""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if device.type == "cuda" and device.capability < (9, 0):
            yield f"clusters need compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
        row_bytes = problem.cols * problem.torch_dtype.itemsize
        if row_bytes < self.shortest_bytes:
            yield f"a row of {row_bytes} bytes is too short for a cluster (from {self.shortest_bytes} on)"
        else:
            yield from super().unsupported(problem, device)


class Looped(Form):
    """A row of any length in tiles, read twice; the second time it comes from the L2 cache where rows are not many."""

    name = "cuda.online"

    def preference(self, problem: Problem) -> float:
        """Triton's form of it is slightly faster on an H200."""
        return 0.2

    def space(self, length: RowLength) -> Space:
        space = Space(threads=_THREADS[2:], items=self._items_of(length))
        return space.require(
            "at least two tiles", lambda config: length.cols > config["threads"] * config["items"] * length.widest
        )

    def shape(self, length: RowLength, config: Config) -> Shape:
        vector = length.vector(_WIDEST)
        # a twin for unaligned tensors keeps as many bytes in flight
        return Shape(config["threads"], 1, 1, config["items"] * (length.widest // vector), vector)

    def misfit(self, length: RowLength) -> str:
        least = _THREADS[2] * self._items_of(length)[0] * length.widest
        return "" if length.cols > least else f"a row of {length.cols} is a single tile: cuda.row does it"

    def _items_of(self, length: RowLength) -> tuple[int, ...]:
        return (1, 2, 4, 8) if length.widest > 1 else (4, 8, 16)

    def cost(self, length: RowLength, config: Config) -> tuple[float, float]:
        shape = self.shape(length, config)
        part = shape.items * shape.vector * length.itemsize
        return 0.0, abs(math.log2(part / 64)) + abs(math.log2(shape.threads / 512))


row, cluster, looped = Row(), Cluster(), Looped()


@lru_cache(maxsize=_KEPT)
def space_of(form: Form, length: RowLength) -> Space:
    """The form's space: kept, so that another number of rows finds it."""
    return form.space(length)


@lru_cache(maxsize=_KEPT)
def default_of(form: Form, length: RowLength) -> Config:
    """The form's default."""
    return min(space_of(form, length).configs, key=lambda config: form.cost(length, config))


@lru_cache(maxsize=_KEPT)
def shape_of(form: Form, length: RowLength, *values: tuple[str, int]) -> Shape:
    """The shape of a config, given as its items."""
    return form.shape(length, dict(values))


def _vector_bytes(length: RowLength) -> list[int]:
    """Widths worth trying: the two widest that divide a row."""
    return [length.itemsize * width for width in (length.widest // 2, length.widest) if width]


def _part_bytes(length: RowLength, config: Config) -> int:
    """Bytes of a row that one thread holds; by the length alone, so that a space is the same for unaligned tensors."""
    vector = config["vector_bytes"] // length.itemsize
    columns = _slice(length.cols, config.get("cluster", 1), vector)
    return _items(columns, config["threads"] * vector) * int(config["vector_bytes"])


def _all_busy(length: RowLength, config: Config) -> bool:
    vector = config["vector_bytes"] // length.itemsize
    columns = _slice(length.cols, config.get("cluster", 1), vector)
    return bool(config["threads"] == _THREADS[0] or config["threads"] // 2 * vector < columns)


def _slice(cols: int, cluster: int, vector: int) -> int:
    """Columns of one of the cluster's blocks, as the kernels have it."""
    return -(-(cols // vector) // cluster) * vector


def _items(columns: int, width: int) -> int:
    return max(1, -(-columns // width))
