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
_MOST_THREADS = 1024
_OTHER_REGISTERS = 30
_MOST_HELD = 36
"""Words of four bytes that a thread holds."""
_WARP = 32
_STATIC_BYTES = 8 * 1024
"""Barriers and the partial results of a cluster's warps, at most, and what the driver takes of a block."""
_LEAST_HELD = 96 * 1024
"""Less is not enough on the way for the bandwidth of memory."""
_GRID_LIMIT = 2**31 - 1
_MOST_BYTES = 2**31 - 2**16
_USABLE = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.8}
"""By size of a cluster, the share of multiprocessors that whole clusters fill: parts of a GPU have odd numbers."""
_KEPT = 1024


class PipelinedSoftmax(CudaImplementation):
    """One exponential an element, of rows that come to shared memory by the copy engine and leave it likewise.

    cluster  blocks that share a row
    teams    groups of warps of a block that compute a row each
    threads  of a team
    stages   rows, or pieces of them, in the shared memory of a block
    waves    clusters that run one after another: fewer rows each, which balances clusters and costs their beginnings
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
        """Two teams, pieces of a row of which several fit, and clusters for one wave."""
        return _default(_RowBytes.of(problem), shared_limit(device.target))

    def preference(self, problem: Problem, device: Device) -> float:
        """Not before it was tuned and verified."""
        return 0.1

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        row, cluster, teams = _RowBytes.of(problem), config["cluster"], config["teams"]
        at_once = max(int(max(device.multiprocessors, 1) * _USABLE[cluster]) // cluster, 1)
        each = max(-(-problem.rows // (at_once * config["waves"])), 1)
        threads = teams * config["threads"] + _WARP
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(-(-problem.rows // each) * cluster,),
            args=("y", "x", problem.rows, each),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": _CHUNK // row.itemsize,
                "COLS": problem.cols,
                "THREADS": config["threads"],
                "TEAMS": teams,
                "CLUSTER": cluster,
                "STAGES": config["stages"],
            },
            options={"block": threads},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=config["stages"] * row.piece(cluster) * _CHUNK,
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
        """Words of four bytes that a thread holds."""
        return -(-self.piece(config["cluster"]) // int(config["threads"])) * (_CHUNK // 4)


@lru_cache(maxsize=_KEPT)
def _space(row: _RowBytes, limit: int) -> Space:
    """``limit``: bytes of shared memory that a block may have."""
    space = Space(cluster=[1, 2, 4, 8], teams=[1, 2], threads=[256, 320, 480], stages=[2, 3, 4, 6, 8], waves=[1, 2, 4])
    return (
        space.require(
            "rows, or pieces of them, fit in shared memory",
            lambda config: config["stages"] * row.piece(config["cluster"]) * _CHUNK + _STATIC_BYTES <= limit,
        )
        .require(f"a thread holds at most {_MOST_HELD} words", lambda config: row.held(config) <= _MOST_HELD)
        .require(
            "what is held fits in registers",
            lambda config: (
                (config["teams"] * config["threads"] + _WARP) * (row.held(config) + _OTHER_REGISTERS) <= _REGISTER_FILE
            ),
        )
        .require(
            "every second thread has a chunk", lambda config: config["threads"] // 2 < row.piece(config["cluster"])
        )
        .require(
            f"at most {_MOST_THREADS} threads a block",
            lambda config: config["teams"] * config["threads"] + _WARP <= _MOST_THREADS,
        )
        .require("a row is on the way for each team", lambda config: config["stages"] > config["teams"])
        .require(
            f"{_LEAST_HELD} bytes of shared memory are in use",
            lambda config: config["stages"] * row.piece(config["cluster"]) * _CHUNK >= _LEAST_HELD,
        )
    )


@lru_cache(maxsize=_KEPT)
def _default(row: _RowBytes, limit: int) -> Config:
    def cost(config: Config) -> tuple[float, ...]:
        return (
            abs(config["teams"] - 2),
            abs(config["stages"] * row.piece(config["cluster"]) * _CHUNK - 192 * 1024) // (32 * 1024),
            config["cluster"],
            config["waves"],
            abs(config["teams"] * config["threads"] - 1024),
            -config["stages"],
        )

    return min(_space(row, limit).configs, key=cost)
