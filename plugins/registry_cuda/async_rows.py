"""softmax, its gradient and rms_norm over rows in the shared memory of a block or of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from .number import C_TYPES, number_reasons

_SHARED_FILES = ("number.cuh", "cluster.cuh", "async_rows/rows.cuh")
_VECTOR, _LINE = 16, 128
_LEAST_BYTES = 16 * 1024
_MANY_BYTES, _MANY_ROWS = 48 * 1024, 128
_MOST_TILES = 8
_GRID_LIMIT = 2**31 - 1
_RESERVED = 1024
"""Shared memory of a block that the driver keeps."""
_MOST_THREADS = {1: 2048, 2: 1536, 4: 1024}
"""Of a multiprocessor, by vectors of a thread in a tile, which need so many registers more."""
_KEPT = 1024


class AsyncRows(CudaImplementation):
    """A row in shared memory: threads copy it asynchronously, and it is read from memory once.

    Rows need not begin at a multiple of 16 bytes: a vector that two rows share is read for each of them.
    From compute capability 9.0 on the blocks of a cluster may share a row; they store their part of its result in one
    another's memory, and wait for these alone. (On an H200 softmax by the copy engine and barriers of the cluster took
    1.14 of its time, and by blocks that stay and go through several rows 1.1 to 1.4.)

    cluster   blocks that have a part of a row each
    threads   of a block
    items     vectors of a thread in a tile, which is awaited as a whole
    """

    name = "cuda.async"
    inputs: tuple[str, ...]
    output: str
    kernel: str
    parameters: tuple[str, ...] = ()
    """Of the kernel, after its inputs."""
    ragged = True
    """Whether a row may be of any number of elements."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)
        if problem.dtype not in C_TYPES:
            return
        if device.type == "cuda" and device.capability[0] < 8:
            yield f"copies need compute capability 8.0, this GPU has {'.'.join(map(str, device.capability))}"
        if not problem.traits["aligned"]:
            yield f"tensors do not begin at multiples of {_VECTOR} bytes"
        length = _row_bytes(problem)
        if length % _VECTOR and not self.ragged:
            yield f"a row of {length} bytes is no multiple of {_VECTOR}"
        if length < _LEAST_BYTES:
            yield f"a row of {length} bytes is too short for shared memory (from {_LEAST_BYTES} on)"
        elif not self.space(problem, device).configs:
            blocks = "a block" if _most_cluster(device) == 1 else f"{_most_cluster(device)} blocks"
            yield f"a row of {length} bytes does not fit in the shared memory of {blocks}"
        if problem.rows * _most_cluster(device) > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"

    def space(self, problem: Problem, device: Device) -> Space:
        """Parts of a row, and how they are gone through."""
        return _space(_Row.of(problem), len(self.inputs), _most_cluster(device), shared_limit(device.target))

    def default(self, problem: Problem, device: Device) -> Config:
        """A block a row up to 40 KiB, two up to 128 KiB, else eight of half as many threads."""
        held = len(self.inputs) * _row_bytes(problem) / 1024
        cluster = 1 if held <= 40 else 2 if held <= 128 else 8
        wanted = cluster, 256 if cluster > 2 else 512, 4 if held > 384 else 2
        return _nearest(self.space(problem, device), wanted)

    def preference(self, problem: Problem, device: Device) -> float:
        """For many rows that are too long for registers: what reads them twice is slower."""
        return 1.9 if _row_bytes(problem) >= _MANY_BYTES and problem.rows >= _MANY_ROWS else 0.55

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        cluster, threads = config["cluster"], config["threads"]
        row, inputs = _Row.of(problem), len(self.inputs)
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(problem.rows * cluster,),
            args=(self.output, *self.inputs, *self.parameters, problem.rows),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "COLS": problem.cols,
                "VEC": row.vector,
                "ITEMS": config["items"],
                "THREADS": threads,
                "CLUSTER": cluster,
                "SLICE": _slice(row, config),
                "INPUTS": inputs,
                "RESIDENT": _resident(row, inputs, config, shared_limit(device.target)),
                **self.constants(problem),
            },
            options={"block": threads},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=inputs * _slice(row, config) * _VECTOR,
        )

    def constants(self, problem: Problem) -> Mapping[str, Any]:
        """Macros of this kernel alone."""
        return {}


class AsyncSoftmax(AsyncRows):
    """Maximum and sum are found together (online softmax, Milakov and Gimelshein, 2018) while the row arrives."""

    op = "softmax"
    output, inputs = "y", ("x",)
    kernel = "async_softmax"
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "async_rows/softmax.cu")


class AsyncSoftmaxBackward(AsyncRows):
    """The row's sum of products in float32, then one rounding of each element."""

    op = "softmax_backward"
    output, inputs = "grad_x", ("grad_y", "y")
    kernel = "async_softmax_backward"
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "async_rows/softmax_backward.cu")


class AsyncRmsNorm(AsyncRows):
    """Sum of squares in float32, one rounding at the end."""

    op = "rms_norm"
    mixed = True
    ragged = False
    output, inputs, parameters = "y", ("x",), ("weight", "eps")
    kernel = "async_rms_norm"
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "async_rows/rms_norm.cu")

    def constants(self, problem: Problem) -> Mapping[str, Any]:
        return {"MIXED": problem.traits["mixed"]}


class _Row(NamedTuple):
    """A row of ``cols`` elements of ``itemsize`` bytes."""

    cols: int
    itemsize: int

    @classmethod
    def of(cls, problem: Problem) -> _Row:
        """A row of the problem."""
        return cls(problem.cols, problem.torch_dtype.itemsize)

    @property
    def vector(self) -> int:
        """Elements of 16 bytes."""
        return _VECTOR // self.itemsize

    @property
    def vectors(self) -> int:
        """Most vectors of a row, wherever it begins, from the line of 128 bytes on that has its first element."""
        line = _LINE // self.itemsize
        most_lead = line - math.gcd(self.cols, line)
        return -(-(self.cols + most_lead) // self.vector)


def _row_bytes(problem: Problem) -> int:
    return int(problem.cols * problem.torch_dtype.itemsize)


def _most_cluster(device: Device) -> int:
    """Blocks that may share a row."""
    return 8 if device.capability[0] >= 9 else 1


def _slice(row: _Row, config: Config) -> int:
    """Vectors of a block's part of a row: whole lines."""
    a_line = _LINE // _VECTOR
    return int(-(-row.vectors // (config["cluster"] * a_line)) * a_line)


def _tiles(row: _Row, config: Config) -> int:
    return int(-(-_slice(row, config) // (config["threads"] * config["items"])))


def _shared_bytes(row: _Row, inputs: int, config: Config) -> int:
    """Shared bytes of a block: its part of the row, two numbers a warp of the cluster, a barrier, the driver's."""
    warps = config["cluster"] * config["threads"] // 32
    beside = -(-(8 * warps + 8) // _LINE) * _LINE
    return int(inputs * _slice(row, config) * _VECTOR + beside + _RESERVED)


@lru_cache(maxsize=_KEPT)
def _space(row: _Row, inputs: int, most_cluster: int, limit: int) -> Space:
    clusters = [cluster for cluster in (1, 2, 4, 8) if cluster <= most_cluster]
    space = Space(cluster=clusters, threads=[128, 256, 512, 1024], items=[1, 2, 4])
    return (
        space.require(
            "each block has a part",
            lambda config: (config["cluster"] - 1) * _slice(row, config) < row.cols // row.vector,
        )
        .require("a part is at least a tile", lambda config: _slice(row, config) >= config["threads"] * config["items"])
        .require("at most 8 tiles", lambda config: _tiles(row, config) <= _MOST_TILES)
        .require("parts fit in shared memory", lambda config: _shared_bytes(row, inputs, config) <= limit)
    )


def _resident(row: _Row, inputs: int, config: Config, limit: int) -> int:
    """Blocks of a multiprocessor: what its shared memory and registers allow."""
    return int(
        max(1, min(_MOST_THREADS[config["items"]] // config["threads"], limit // _shared_bytes(row, inputs, config)))
    )


@lru_cache(maxsize=_KEPT)
def _nearest(space: Space, wanted: tuple[int, int, int]) -> Config:
    def distance(config: Config) -> list[int]:
        return [abs(config[name] - value) for name, value in zip(space.domains, wanted, strict=True)]

    return min(space.configs, key=distance)
