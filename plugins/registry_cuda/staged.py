"""softmax and its gradient over long rows, which a cluster of blocks holds in its shared memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from .number import C_TYPES, number_reasons

_SHARED_FILES = ("number.cuh", "cluster.cuh", "row.cuh", "tensor_core.cuh", "warpgroup.cuh")
_VECTOR = 16
_SHORTEST = 16 * 1024
_LONG = 64 * 1024
_LEAST_TILE = 256
_MOST_COLS = 2**31 - 2**18
_GRID_LIMIT = 2**31 - 1
_BARRIERS = 128
_STATIC = 1024
"""Bytes of a block beside what it stages: its reductions, and what the driver keeps."""
_THREADS_AT_ONCE = 1536
"""Of a multiprocessor: leaves 40 registers for each."""
_FEW_ROWS = 64
_KEPT = 1024


class StagedRows(CudaImplementation):
    """A row in the shared memory of a cluster's blocks: the copy engine brings it, and it is read from memory once.

    Several blocks share a multiprocessor, so that some are filled while others are reduced or written. (Blocks that go
    through several rows, and are filled ahead, took 1.05 to 1.6 of the time on an H200.)

    cluster   blocks that have a part of a row each
    threads   of a block
    items     vectors of a thread in a tile, which is one copy
    """

    name = "cuda.staged"
    inputs: tuple[str, ...]
    output: str
    kernel: str

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)
        if problem.dtype not in C_TYPES:
            return
        if device.type == "cuda" and device.capability[0] < 9:
            yield f"the copy engine is of compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
        if not problem.traits["aligned"]:
            yield f"tensors do not begin at multiples of {_VECTOR} bytes"
        length = _row_bytes(problem)
        if length % _VECTOR:
            yield f"a row of {length} bytes is no multiple of {_VECTOR}"
        elif length < _SHORTEST:
            yield f"a row of {length} bytes is too short for shared memory (from {_SHORTEST} on)"
        elif problem.cols > _MOST_COLS or not self.space(problem, device).configs:
            yield f"a row of {length} bytes does not fit in the shared memory of a cluster"
        if problem.rows * 8 > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"

    def space(self, problem: Problem, device: Device) -> Space:
        """Parts of a row, and how they are gone through."""
        return _space(_row_bytes(problem), len(self.inputs), shared_limit(device.target))

    def default(self, problem: Problem, device: Device) -> Config:
        """Parts of a row of about 64 KiB in all, in tiles of 16 KiB."""
        length, inputs = _row_bytes(problem), len(self.inputs)
        return min(self.space(problem, device).configs, key=lambda config: _distance(length, inputs, config))

    def preference(self, problem: Problem, device: Device) -> float:
        """For many rows that are too long for registers: what reads them twice is slower."""
        return 1.8 if _row_bytes(problem) >= _LONG and problem.rows >= _FEW_ROWS else 0.55

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        staging, cluster = _staging(_row_bytes(problem), len(self.inputs), config), config["cluster"]
        itemsize = problem.torch_dtype.itemsize
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(problem.rows * cluster,),
            args=(self.output, *self.inputs, problem.rows),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "COLS": problem.cols,
                "VEC": _VECTOR // itemsize,
                "ITEMS": config["items"],
                "THREADS": config["threads"],
                "ROWS": 1,
                "CLUSTER": cluster,
                "INPUTS": len(self.inputs),
                "RESIDENT": _resident(staging, config, shared_limit(device.target)),
            },
            options={"block": config["threads"]},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=staging.shared_bytes,
        )


class StagedSoftmax(StagedRows):
    """Maximum and sum are found together (online softmax, Milakov and Gimelshein, 2018) while the row arrives."""

    op = "softmax"
    output, inputs = "y", ("x",)
    kernel = "staged_softmax"
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "staged.cuh", "staged_softmax.cu")


class StagedSoftmaxBackward(StagedRows):
    """The row's sum of products in float32, then one rounding of each element."""

    op = "softmax_backward"
    output, inputs = "grad_x", ("grad_y", "y")
    kernel = "staged_softmax_backward"
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "staged.cuh", "staged_softmax_backward.cu")


class _Staging(NamedTuple):
    """What a block holds: tiles of its parts of rows, and their bytes with their barriers."""

    tiles: int
    shared_bytes: int


def _row_bytes(problem: Problem) -> int:
    return int(problem.cols * problem.torch_dtype.itemsize)


def _part(row_bytes: int, config: Config) -> int:
    """Vectors of a block's part of a row."""
    return -(-(row_bytes // _VECTOR) // int(config["cluster"]))


def _tile(config: Config) -> int:
    """Vectors of a tile."""
    return int(config["threads"] * config["items"])


def _staging(row_bytes: int, inputs: int, config: Config) -> _Staging:
    tiles = -(-_part(row_bytes, config) // _tile(config))
    barriers = -(-8 * tiles // _BARRIERS) * _BARRIERS
    return _Staging(tiles, barriers + inputs * tiles * _tile(config) * _VECTOR)


@lru_cache(maxsize=_KEPT)
def _space(row_bytes: int, inputs: int, limit: int) -> Space:
    def shared(config: Config) -> int:
        return _staging(row_bytes, inputs, config).shared_bytes + _STATIC

    space = Space(cluster=[1, 2, 4, 8], threads=[128, 256, 512, 1024], items=[1, 2, 4])
    return (
        space.require(
            "each block has a part",
            lambda config: (config["cluster"] - 1) * _part(row_bytes, config) * _VECTOR < row_bytes,
        )
        .require("a part is at least a tile", lambda config: _part(row_bytes, config) >= _tile(config))
        .require("copies are of 4 KiB or more", lambda config: _tile(config) >= _LEAST_TILE)
        .require("parts fit in shared memory", lambda config: shared(config) <= limit)
    )


def _resident(staging: _Staging, config: Config, limit: int) -> int:
    """Blocks of a multiprocessor: what its shared memory and registers allow."""
    return int(max(1, min(_THREADS_AT_ONCE // config["threads"], limit // (staging.shared_bytes + _STATIC))))


def _distance(row_bytes: int, inputs: int, config: Config) -> tuple[float, ...]:
    part = inputs * _part(row_bytes, config) * _VECTOR
    return abs(part - _LONG), abs(config["threads"] - 512), abs(_tile(config) * _VECTOR - _SHORTEST)
