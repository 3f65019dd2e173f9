"""top_k_top_p_sampling with each row in the shared memory of a cluster of thread blocks, read from memory once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from ..number import C_TYPES, vector_width

SHARED_FILES = ("number.cuh", "cluster.cuh")
FILES = ("collectives.cuh", "row.cuh", "histogram.cuh", "listed.cuh", "top_k_top_p.cu")
"""Kernel text behind that of siblings.cuh."""

_CLUSTERS = (1, 2, 4, 8, 16)
_PORTABLE_CLUSTER = 8
_THREADS = (64, 128, 256, 512, 1024)
_BINS = (256, 512, 1024)
_STATE_BYTES = 28 * 1024
"""Shared bytes of a block beside its columns, with 1024 bins."""
_LEAST_COLUMNS = 1024
"""Columns of a block's part of a row that is worth a sibling."""
_GRID_LIMIT = 2**31 - 1
_WIDEST = 16


class ClusterTopKTopPSampling(CudaImplementation):
    """A histogram over the row's blocks finds the bin of each filter's least kept logit; a short list is drawn from by
    one block, what is longer by all."""

    op = "top_k_top_p_sampling"
    name = "cuda.cluster"
    source = "\n".join(
        (
            read_source("registry_cuda.kernels", *SHARED_FILES),
            read_source("registry_cuda.sampling.kernels", "siblings.cuh", *FILES),
        )
    )

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in C_TYPES:
            yield f"{problem.dtype} is not one of {', '.join(C_TYPES)}"
            return
        if not all(problem.traits.contiguous(name) for name in ("logits", "uniform")):
            yield "logits or uniform is not contiguous"
        if self.space(problem, device).is_empty:
            blocks = f"{_CLUSTERS[-1]} blocks" if _most_blocks(device) > 1 else "one block"
            yield f"a row of {problem.cols} does not fit in the shared memory of {blocks}"
        if problem.rows * _CLUSTERS[-1] > _GRID_LIMIT:
            yield f"{problem.rows} rows are more than a grid of {_GRID_LIMIT} blocks can hold"

    def space(self, problem: Problem, device: Device) -> Space:
        """Blocks of a row, threads of a block, and bins of a histogram."""
        return _space(*_lengths(problem, device))

    def default(self, problem: Problem, device: Device) -> Config:
        """Up to 8 blocks a row, as many as keep every SM busy; 16 columns a thread, or 32 where an SM has several
        blocks, which wait at different times."""
        wanted = max(1, 2 * device.multiprocessors // max(problem.rows, 1))
        cluster = min(_PORTABLE_CLUSTER, 2 ** (wanted.bit_length() - 1))
        columns = 16 if problem.rows * _PORTABLE_CLUSTER <= device.multiprocessors else 32
        return _default(*_lengths(problem, device), cluster, columns)

    def preference(self, problem: Problem, device: Device) -> float:
        """A row is read once, and no step is left to one thread block of a row that many share."""
        return 3.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        cluster, itemsize = config["cluster"], problem.torch_dtype.itemsize
        vector = vector_width(itemsize, problem.traits["aligned"], _WIDEST, problem.cols)
        return Launch(
            CudaKernel(self.source, "top_k_top_p"),
            grid=(problem.rows * cluster,),
            args=("samples", "logits", "uniform", "top_k", "top_p", _step(problem, "top_k"), _step(problem, "top_p")),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "COLS": problem.cols,
                "VEC": vector,
                "THREADS": config["threads"],
                "CLUSTER": cluster,
                "BINS": config["bins"],
                "TOP_K": problem.top_k,
                "TOP_P": problem.top_p,
            },
            options={"block": config["threads"]},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=-(-_slice(problem.cols, itemsize, cluster) * itemsize // _WIDEST) * _WIDEST,
        )


def _step(problem: Problem, name: str) -> int:
    """Elements from the filter of a row to the next: 0 for a number that stands for all rows."""
    traits = problem.traits
    if not problem.dims[name] or traits.contiguous(name) or (arguments := traits.arguments) is None:
        return 1
    return int(arguments.tensor(name).strides[0])


def _slice(cols: int, itemsize: int, cluster: int) -> int:
    """Columns of a block in whole vectors of the widest kind; of narrower ones they are not more."""
    widest = math.gcd(cols, _WIDEST // itemsize)
    return -(-cols // widest // cluster) * widest


def _most_blocks(device: Device) -> int:
    """The most blocks of a row: one where a GPU has no clusters."""
    return _CLUSTERS[-1] if device.capability >= (9, 0) else 1


def _lengths(problem: Problem, device: Device) -> tuple[int, int, int, int]:
    """Columns, bytes of a logit, the most blocks of a row, and bytes that a block has for its columns."""
    room = shared_limit(device.target) - _STATE_BYTES
    return problem.cols, problem.torch_dtype.itemsize, _most_blocks(device), room


@lru_cache(maxsize=1024)
def _space(cols: int, itemsize: int, most: int, room: int) -> Space:
    def threads(config: Config) -> bool:
        each = _slice(cols, itemsize, config["cluster"]) / config["threads"]
        return bool(
            (each >= 4 or config["threads"] == _THREADS[0]) and (each <= 64 or config["threads"] == _THREADS[-1])
        )

    def fits(config: Config) -> bool:
        return bool(_slice(cols, itemsize, config["cluster"]) * itemsize <= room)

    def long(config: Config) -> bool:
        return bool(config["cluster"] == 1 or cols >= _LEAST_COLUMNS * config["cluster"])

    space = Space(cluster=[count for count in _CLUSTERS if count <= most], threads=_THREADS, bins=_BINS)
    space = space.require(f"at most {room} bytes of a row in a block", fits)
    space = space.require(f"at least {_LEAST_COLUMNS} columns a block of several", long)
    return space.require("4 to 64 columns a thread", threads)


@lru_cache(maxsize=1024)
def _default(cols: int, itemsize: int, most: int, room: int, cluster: int, columns: int) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        each = _slice(cols, itemsize, config["cluster"]) / config["threads"]
        return (
            config["cluster"] > _PORTABLE_CLUSTER,
            _slice(cols, itemsize, config["cluster"]) * itemsize > 80 * 1024,
            abs(math.log2(config["cluster"] / cluster)),
            abs(math.log2(each / columns)),
            abs(math.log2(config["bins"] / 512)),
        )

    return min(_space(cols, itemsize, most, room).configs, key=distance)
