"""softmax of long rows, each read once, while the copy engine brings and takes away others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from .number import C_TYPES, number_reasons

_CHUNK = 16
_SHORTEST_BYTES = 16 * 1024
_REGISTER_FILE = 65536
_OTHER_REGISTERS = 40
_MOST_HELD = 64
"""Elements that a thread holds as floats."""
_STATIC_BYTES = 8 * 1024
"""Barriers and the partial results of a cluster's warps, at most, and what the driver takes of a block."""
_GRID_LIMIT = 2**31 - 1
_MOST_BYTES = 2**31 - 2**16
_KEPT = 1024


class PipelinedSoftmax(CudaImplementation):
    """One exponential an element, of rows that come to shared memory by the copy engine and leave it likewise.

    cluster   blocks that share a row
    threads   of a block
    stages    rows, or pieces of them, in the shared memory of a block
    resident  blocks that share a multiprocessor
    rows      rows that a cluster computes one after another
    """

    op = "softmax"
    name = "cuda.pipelined"
    kernel = "softmax_pipelined"
    source = read_source(f"{__package__}.kernels", "number.cuh", "cluster.cuh", "bulk_copy.cuh", "softmax_pipelined.cu")

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)
        if device.type == "cuda" and device.capability < (9, 0):
            yield f"clusters need compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
        if not problem.traits["aligned"]:
            yield "a tensor does not begin at a multiple of 16 bytes"
        if problem.dtype not in C_TYPES:
            return
        row = _RowBytes.of(problem)
        if row.bytes < _SHORTEST_BYTES:
            yield f"a row of {row.bytes} bytes is too short (from {_SHORTEST_BYTES} on)"
        elif row.bytes > _MOST_BYTES or _space(row, shared_limit(device.target)).is_empty:
            yield f"a row of {row.bytes} bytes does not fit in the shared memory of a cluster"
        if problem.rows * 8 > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"

    def space(self, problem: Problem, device: Device) -> Space:
        return _space(_RowBytes.of(problem), shared_limit(device.target))

    def default(self, problem: Problem, device: Device) -> Config:
        """The fewest blocks a row whose threads hold a few chunks each, with two rows on the way."""
        return _default(_RowBytes.of(problem), shared_limit(device.target))

    def preference(self, problem: Problem, device: Device) -> float:
        """For as many rows as keep every multiprocessor busy; below, the forms that split a row over more blocks."""
        busy = problem.rows * 4 >= max(device.multiprocessors, 1)
        return 2.5 if busy and _RowBytes.of(problem).bytes >= 2 * _SHORTEST_BYTES else 0.4

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        row, cluster, stages = _RowBytes.of(problem), config["cluster"], config["stages"]
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(-(-problem.rows // config["rows"]) * cluster,),
            args=("y", "x", problem.rows),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": _CHUNK // row.itemsize,
                "COLS": problem.cols,
                "THREADS": config["threads"],
                "CLUSTER": cluster,
                "STAGES": stages,
                "RESIDENT": config["resident"],
                "ROWS": config["rows"],
            },
            options={"block": config["threads"]},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=stages * row.piece(cluster) * _CHUNK,
        )


class _RowBytes(NamedTuple):
    """The length of a row, and the bytes of an element."""

    bytes: int
    itemsize: int

    @classmethod
    def of(cls, problem: Problem) -> _RowBytes:
        itemsize = problem.torch_dtype.itemsize
        return cls(problem.cols * itemsize, itemsize)

    def piece(self, cluster: int) -> int:
        """Chunks of 16 bytes of a block, at most: a row that 16 does not divide may begin anywhere in a chunk."""
        lead = 0 if self.bytes % _CHUNK == 0 else _CHUNK - self.itemsize
        chunks = -(-(self.bytes + lead) // _CHUNK)
        return -(-chunks // cluster)

    def held(self, config: Config) -> int:
        """Elements that a thread holds."""
        each = -(-self.piece(config["cluster"]) // int(config["threads"]))
        return each * (_CHUNK // self.itemsize)


@lru_cache(maxsize=_KEPT)
def _space(row: _RowBytes, limit: int) -> Space:
    """``limit``: bytes of shared memory that a block may have, which is nearly all of a multiprocessor's."""
    space = Space(
        cluster=[1, 2, 4, 8], threads=[256, 512, 1024], stages=[1, 2, 3, 4], resident=[1, 2, 4], rows=[1, 4, 16]
    )
    return (
        space.require(
            "rows, or pieces of them, fit in shared memory",
            lambda config: (
                config["resident"] * (config["stages"] * row.piece(config["cluster"]) * _CHUNK + _STATIC_BYTES) <= limit
            ),
        )
        .require(f"a thread holds at most {_MOST_HELD} elements", lambda config: row.held(config) <= _MOST_HELD)
        .require(
            "elements fit in registers",
            lambda config: (
                config["resident"] * config["threads"] * (row.held(config) + _OTHER_REGISTERS) <= _REGISTER_FILE
            ),
        )
        .require(
            "every second thread has a chunk", lambda config: config["threads"] // 2 < row.piece(config["cluster"])
        )
        .require("something is on the way", lambda config: config["stages"] > 1 or config["resident"] > 1)
        .require("no more stages than rows", lambda config: config["stages"] <= max(config["rows"], 1))
    )


@lru_cache(maxsize=_KEPT)
def _default(row: _RowBytes, limit: int) -> Config:
    def cost(config: Config) -> tuple[float, ...]:
        in_flight = config["resident"] * config["stages"]
        return (config["cluster"], abs(in_flight - 4), -config["resident"], abs(config["rows"] - 4), config["threads"])

    return min(_space(row, limit).configs, key=cost)
