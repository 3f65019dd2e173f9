"""4-bit weight-only matrix product for decode and small batches: the weight in the tensor cores' own order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit
from registry.backends.programmatic_launch import launches_dependents, pdl_options

from . import int4_order
from .int4_order import CHUNK, STRIPE, chunks, unit
from .number import C_TYPES

_DTYPES = ("bfloat16", "float16")
_TOKENS = (8, 16, 32, 64)
_MOST_TOKENS = 256
_MOST_COLUMNS = 65535 * 32
_DEEPEST = 2**25
_WARP = 32
_VECTOR = 16
_REGISTERS = 65536
_MOST_REGISTERS = 255
# beside rings and accumulators, for addresses and expanded weights: less makes ptxas spill
_SPARE_REGISTERS = 31
_WARPS_PER_MULTIPROCESSOR = 16
_KEPT = 1024
_SOURCE = read_source(f"{__package__}.kernels", "number.cuh", "tensor_core.cuh", "dependent.cuh", "gemm_int4.cu")
_KERNEL = CudaKernel(_SOURCE, "gemm_int4")


class MmaInt4(CudaImplementation):
    """Tensor cores (mma.sync) on weights that go from memory to registers, in the order of PTX's fragments, as Marlin
    does (Frantar et al., 2024): the weight is the 16-row operand and the tokens the 8-wide one, raw 4-bit numbers are
    multiplied and scaled after each group, and K is split over the warps of a block and the blocks of a cluster.
    From compute capability 9.0 on it is launched as a dependent kernel, whose first weights are on their way while the
    kernel ahead still runs.

    columns, warps_n   of a warp, and warps side by side in a block
    tokens             rows of a in a block
    warps_k, cluster   warps of a block, and blocks, that K is split over
    ahead              chunks of 32 k's that a warp keeps on the way from memory
    """

    op = "gemm_int4"
    name = "cuda.mma"
    source = _SOURCE

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in _DTYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_DTYPES)}"
        if not problem.traits["contiguous"]:
            yield "tensors are not contiguous"
        if device.type == "cuda" and device.capability < (8, 0):
            yield f"it needs compute capability 8.0, this GPU has {'.'.join(map(str, device.capability))}"
        if problem.m > _MOST_TOKENS:
            yield f"m={problem.m} rows need the larger tiles of a product for prefill (limit {_MOST_TOKENS})"
        if problem.n > _MOST_COLUMNS:
            yield f"n={problem.n} columns are more than a grid has (limit {_MOST_COLUMNS})"
        if problem.k > _DEEPEST:
            yield f"k={problem.k} is beyond what is counted in 32 bits (limit {_DEEPEST})"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"packed": ("qweight",), "factors": ("scales", "zeros")}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight, and scales with zero points, in the order of registry_cuda.int4_order."""
        if name == "packed":
            return int4_order.packed(values[0], problem)
        return int4_order.factors(values[0], values[1])

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """Nothing: whatever wins for one user and for 64, a weight is held once."""
        return {}

    def space(self, problem: Problem, device: Device) -> Space:
        """Tiles, and how K is split."""
        return _space(_Depth.of(problem), tuple([_fits_tokens(problem, count) for count in _TOKENS]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """64 columns (32 with 16 tokens), 8 warps over K, and the least cluster that keeps the GPU busy."""
        space, tiles = self.space(problem, device), tuple([-(-problem.m // count) for count in _TOKENS])
        return _busiest(space, _Depth.of(problem), tiles, problem.n, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """For decode, from one user to a batch of 64."""
        return 2.5 if problem.m <= 64 else 0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        cluster, depth, dependent = config["cluster"], _Depth.of(problem), launches_dependents(device)
        tiles = -(-problem.m // config["tokens"])
        return Launch(
            _KERNEL,
            grid=(cluster * tiles, -(-problem.n // (config["columns"] * config["warps_n"]))),
            args=("y", "a", "packed", "factors", problem.m),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": 4,
                "HALF": problem.dtype == "float16",
                "N": problem.n,
                "K": problem.k,
                "UNIT": depth.unit,
                "PER_COLUMN": problem.group_size == problem.k,
                "SYMMETRIC": problem.symmetric,
                "ALIGNED": problem.traits["aligned"],
                "COLUMNS": config["columns"],
                "TOKENS": config["tokens"],
                "WARPS_N": config["warps_n"],
                "WARPS_K": config["warps_k"],
                "CLUSTER": cluster,
                "AHEAD": config["ahead"],
                "TOKENS_AHEAD": _tokens_ahead(config),
                "RESIDENT": _resident(depth, config),
                "DEPENDENT": dependent,
            },
            options={"block": _warps(config) * _WARP, **pdl_options(dependent)},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=_shared_bytes(config),
        )


class _Depth(NamedTuple):
    """What a space depends on along K: chunks of 32 k's, k's of a unit, whether there are zero points."""

    chunks: int
    unit: int
    symmetric: bool

    @classmethod
    def of(cls, problem: Problem) -> _Depth:
        return cls(chunks(problem), unit(problem), problem.symmetric)

    @property
    def units(self) -> int:
        return self.chunks * CHUNK // self.unit


@lru_cache(maxsize=_KEPT)
def _space(depth: _Depth, fitting: tuple[bool, ...], device: Device) -> Space:
    """``fitting``: of each number of tokens, whether it fits m."""
    tokens = dict(zip(_TOKENS, fitting, strict=True))
    limit = shared_limit(device.target)
    space = Space(
        columns=[32, 64],
        tokens=_TOKENS,
        warps_n=[1, 2],
        warps_k=[4, 8, 16],
        cluster=[1, 2, 4, 8] if device.capability >= (9, 0) else [1],
        ahead=[4, 8],
    )
    return (
        space.require("tokens fit m", lambda config: tokens[config["tokens"]])
        .require("4 to 16 warps", lambda config: _warps(config) <= 16 and _warps(config) >= 4 * config["warps_n"])
        .require("every warp has a unit of K", lambda config: _every_warp_works(depth, config))
        .require("no more loads ahead than chunks", lambda config: _ahead_is_used(depth, config))
        .require("accumulators and loads ahead fit in registers", lambda config: _fits_registers(depth, config))
        .require("partial sums fit in shared memory", lambda config: _shared_bytes(config) <= limit)
    )


@lru_cache(maxsize=_KEPT)
def _busiest(space: Space, depth: _Depth, tiles: tuple[int, ...], n: int, device: Device) -> Config:
    """The default of a space; ``tiles`` are those along m of each number of tokens."""
    along_m = dict(zip(_TOKENS, tiles, strict=True))

    def distance(config: Config) -> tuple[float, ...]:
        along_n = -(-n // (config["columns"] * config["warps_n"]))
        blocks = along_m[config["tokens"]] * along_n * config["cluster"]
        return (
            -min(config["tokens"], 32), _idle(blocks, depth, config, device),
            abs(config["columns"] - (32 if config["tokens"] == 16 else 64)),
            abs(config["warps_k"] - 8), config["warps_n"], config["cluster"], config["tokens"], config["ahead"],
        )  # fmt: skip

    return min(space.configs, key=distance)


def _warps(config: Config) -> int:
    return int(config["warps_n"] * config["warps_k"])


def _fits_tokens(problem: Problem, tokens: int) -> bool:
    """At most twice as many tokens as m, in no more than two tiles where they need not be more."""
    return bool(tokens < 2 * max(problem.m, 5) and tokens >= min(problem.m, 64) / 2)


def _every_warp_works(depth: _Depth, config: Config) -> bool:
    parts = config["warps_k"] * config["cluster"]
    return bool(parts <= depth.units or parts == 4)


def _ahead_is_used(depth: _Depth, config: Config) -> bool:
    """A warp has 8 chunks, and no more than two scales for them: a unit more is code and registers more."""
    deep = config["warps_k"] * config["cluster"] * 8 <= depth.chunks and depth.unit == 4 * CHUNK
    return bool(config["ahead"] == 4 or deep)


def _tokens_ahead(config: Config) -> int:
    """Chunks of the activations on the way: as many as registers allow."""
    if config["tokens"] == 16 and config["columns"] == 64:
        return 2
    return {8: 4, 16: 4, 32: 2, 64: 1}[config["tokens"]]


def _single_unit(depth: _Depth, config: Config) -> bool:
    """Each warp has one, and needs no second set of accumulators."""
    return bool(config["warps_k"] * config["cluster"] == depth.units)


def _live_registers(depth: _Depth, config: Config) -> int:
    """Accumulators of a unit and of all, sums of activations, and the rings."""
    octets, wide = config["tokens"] // 8, config["columns"] // STRIPE
    products = 8 * wide * octets
    sets = 1 if _single_unit(depth, config) else 2
    slots = config["ahead"] * CHUNK // depth.unit
    ring = 4 * wide * config["ahead"] + 4 * octets * _tokens_ahead(config)
    return int(sets * products + 4 * octets + ring + (2 if depth.symmetric else 4) * slots * wide)


def _fits_registers(depth: _Depth, config: Config) -> bool:
    if config["tokens"] == 64 and not _single_unit(depth, config):
        return False
    most = min(_MOST_REGISTERS, _REGISTERS // (_warps(config) * _WARP))
    return _live_registers(depth, config) + _SPARE_REGISTERS <= most


def _resident(depth: _Depth, config: Config) -> int:
    """Blocks that an SM is to hold at once: as many as ptxas has made fit without a spill."""
    live = _live_registers(depth, config)
    each = -(-(live + live // 4 + (8 if live < 120 else 16)) // 8) * 8
    return max(1, _REGISTERS // (each * _warps(config) * _WARP))


def _idle(blocks: int, depth: _Depth, config: Config, device: Device) -> int:
    """Fifths of the GPU without work: SMs without a block, SMs with few warps, a last wave that is not full."""
    multiprocessors, resident = max(device.multiprocessors, 1), _resident(depth, config)
    wanted = min(_WARPS_PER_MULTIPROCESSOR, resident * _warps(config))
    waves = blocks / (multiprocessors * resident)
    lonely = max(0.0, 1 - blocks / multiprocessors)
    sparse = max(0.0, 1 - blocks * _warps(config) / (multiprocessors * wanted))
    return int(5 * (lonely + sparse + (2 / waves - 1 if 1 < waves < 2 else 0)))


def _shared_bytes(config: Config) -> int:
    """A barrier; each warp's partial sums; those received from the cluster's other blocks."""
    vectors = config["warps_n"] * config["columns"] * config["tokens"] // 4
    return int(_VECTOR * (1 + vectors * (config["warps_k"] + (config["cluster"] > 1))))
