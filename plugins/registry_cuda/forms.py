"""How rows are laid over threads: what each form can hold, what it tunes, and the constants that it compiles with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from registry import Config, Device, Problem, Space

from .number import vector_width

_WIDEST = 16
# a thread's part of a row: 32 registers of raw elements, which leaves as many for arithmetic at 1024 threads a block
_THREAD_BYTES = 128
_GRID_LIMIT = 2**31 - 1
# columns are counted in 32 bits, and a last tile may begin before the end of a row
_MOST_COLS = 2**31 - 2**18
_THREADS = (32, 64, 128, 256, 512, 1024)


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
        """See Implementation."""

    @abstractmethod
    def space(self, problem: Problem) -> Space:
        """The tunable parameters; empty of configs where the form does not fit."""

    @abstractmethod
    def shape(self, problem: Problem, config: Config) -> Shape:
        """A config's threads, rows, cluster, items and vector."""

    @abstractmethod
    def misfit(self, problem: Problem) -> str:
        """Why no config fits these rows, for a person to read."""

    def default(self, problem: Problem) -> Config:
        """The config nearest to 64 bytes a thread and 128 threads a block."""
        return min(self.space(problem).configs, key=lambda config: self._cost(problem, config))

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Every reason why this form cannot run the problem."""
        if problem.cols < 1:
            yield "rows are empty"
        elif not len(self.space(problem)):
            yield self.misfit(problem)
        elif problem.cols > _MOST_COLS:
            yield f"a row of {problem.cols} is longer than {_MOST_COLS}"
        if problem.rows * self.widest_cluster > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"

    def _cost(self, problem: Problem, config: Config) -> tuple[float, float]:
        shape = self.shape(problem, config)
        part = shape.items * shape.vector * problem.torch_dtype.itemsize
        # wide vectors first; then the distance in powers of two
        return -shape.vector, abs(math.log2(part / 64)) + abs(math.log2(shape.threads * shape.rows / 128)) / 4


class Row(Form):
    """A row in the registers of one block, several short rows a block."""

    name = "cuda.row"

    def preference(self, problem: Problem) -> float:
        """As fast as Triton's rows on an H200, within 5%."""
        return 0.5

    def space(self, problem: Problem) -> Space:
        space = Space(threads=_THREADS, rows=[1, 2, 4, 8, 16], vector_bytes=_vector_bytes(problem))
        space = space.require(
            f"at most {_THREAD_BYTES} bytes a thread", lambda config: _part_bytes(problem, config) <= _THREAD_BYTES
        )
        space = space.require("a vector for every second thread", lambda config: _all_busy(problem, config))
        return space.require(
            "at most 512 threads when a block has several rows",
            lambda config: config["rows"] == 1 or config["threads"] * config["rows"] <= 512,
        )

    def shape(self, problem: Problem, config: Config) -> Shape:
        vector = vector_width(problem, config["vector_bytes"], problem.cols)
        return Shape(config["threads"], config["rows"], 1, _items(problem.cols, config["threads"] * vector), vector)

    def misfit(self, problem: Problem) -> str:
        most = _THREADS[-1] * _THREAD_BYTES // problem.torch_dtype.itemsize
        return f"a row of {problem.cols} does not fit in registers (limit {most})"


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

    def space(self, problem: Problem) -> Space:
        space = Space(cluster=[2, 4, 8], threads=_THREADS[2:], vector_bytes=_vector_bytes(problem)[-1:])
        space = space.require(
            f"at most {_THREAD_BYTES} bytes a thread", lambda config: _part_bytes(problem, config) <= _THREAD_BYTES
        )
        return space.require("a vector for every second thread", lambda config: _all_busy(problem, config))

    def shape(self, problem: Problem, config: Config) -> Shape:
        vector = vector_width(problem, config["vector_bytes"], problem.cols)
        columns = _slice(problem.cols, config["cluster"], vector)
        return Shape(config["threads"], 1, config["cluster"], _items(columns, config["threads"] * vector), vector)

    def misfit(self, problem: Problem) -> str:
        most = self.widest_cluster * _THREADS[-1] * _THREAD_BYTES // problem.torch_dtype.itemsize
        return f"a row of {problem.cols} does not fit in the registers of a cluster (limit {most})"

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

    def space(self, problem: Problem) -> Space:
        items = [1, 2, 4, 8] if _widest(problem) > 1 else [4, 8, 16]
        space = Space(threads=_THREADS[2:], items=items)
        return space.require(
            "at least two tiles", lambda config: problem.cols > config["threads"] * config["items"] * _widest(problem)
        )

    def shape(self, problem: Problem, config: Config) -> Shape:
        vector = vector_width(problem, _WIDEST, problem.cols)
        # a twin for unaligned tensors keeps as many bytes in flight
        items = config["items"] * (_widest(problem) // vector)
        return Shape(config["threads"], 1, 1, items, vector)

    def misfit(self, problem: Problem) -> str:
        return f"a row of {problem.cols} is a single tile: cuda.row does it"

    def _cost(self, problem: Problem, config: Config) -> tuple[float, float]:
        shape = self.shape(problem, config)
        part = shape.items * shape.vector * problem.torch_dtype.itemsize
        return 0.0, abs(math.log2(part / 64)) + abs(math.log2(shape.threads / 512))


row, cluster, looped = Row(), Cluster(), Looped()


def _widest(problem: Problem) -> int:
    """Elements of the widest load that the length of a row allows, alignment aside."""
    return math.gcd(problem.cols, _WIDEST // problem.torch_dtype.itemsize)


def _vector_bytes(problem: Problem) -> list[int]:
    """Widths worth trying: the two widest that divide a row."""
    itemsize, widest = problem.torch_dtype.itemsize, _widest(problem)
    return [itemsize * width for width in (widest // 2, widest) if width]


def _part_bytes(problem: Problem, config: Config) -> int:
    """Bytes of a row that one thread holds; by the length alone, so that a space is the same for unaligned tensors."""
    itemsize = problem.torch_dtype.itemsize
    vector = config["vector_bytes"] // itemsize
    columns = _slice(problem.cols, config.get("cluster", 1), vector)
    return _items(columns, config["threads"] * vector) * int(config["vector_bytes"])


def _all_busy(problem: Problem, config: Config) -> bool:
    vector = config["vector_bytes"] // problem.torch_dtype.itemsize
    columns = _slice(problem.cols, config.get("cluster", 1), vector)
    return bool(config["threads"] == _THREADS[0] or config["threads"] // 2 * vector < columns)


def _slice(cols: int, cluster: int, vector: int) -> int:
    """Columns of one of the cluster's blocks, as the kernels have it."""
    return -(-(cols // vector) // cluster) * vector


def _items(columns: int, width: int) -> int:
    return max(1, -(-columns // width))
