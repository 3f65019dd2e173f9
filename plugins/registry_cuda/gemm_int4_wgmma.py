"""4-bit weight-only matrix product on Hopper's warpgroup tensor cores: from batches of decode to prefill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit

from .gemm_int4 import MmaInt4
from .hopper import hopper_reasons
from .int4_order import CHUNK, chunks, unit
from .number import C_TYPES

_DTYPES = ("bfloat16", "float16")
_TOKENS = (16, 32, 48, 64, 96, 128)
_FEWEST_TOKENS = 9
_GROUP_COLUMNS = 128
_WARPGROUP = 128
_WARP = 32
_STRIPES = 4
_REGISTER_FILE = 65536
_MOST_REGISTERS = 255
_TAKEN_REGISTERS = 232
_VECTOR = 16
_BARRIER_BYTES = 128
_MOST_COLUMNS = 2**24
_DEEPEST = 2**22
_KEPT = 1024
_USABLE = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.8}
"""By size of a cluster, the share of multiprocessors that whole clusters fill: parts of a GPU have odd numbers."""
_SOURCE = read_source(f"{__package__}.kernels", "number.cuh", "tensor_core.cuh", "warpgroup.cuh", "gemm_int4_wgmma.cu")
_TILES = CudaKernel(read_source(f"{__package__}.kernels", "token_tiles.cu"), "token_tiles")
_TILE_THREADS = 128
_TILE_ROWS = 16


class WgmmaInt4(CudaImplementation):
    """Warpgroup products (wgmma): the weight, expanded in registers, is the 64-row operand, the tokens are the other.

    A first launch puts the tokens in the products' order; the copy engine brings tokens and weight to shared memory.

    It reads the prepared weight of ``decode``, ``cuda.mma``: both together hold one copy.

    tokens      rows of a in a tile
    groups      warpgroups side by side in a block, 128 columns each
    along_k     warpgroups for each of these, which take turns along K
    cluster     blocks that K is split over
    stages      steps of 64 k's in shared memory
    resident    blocks that share a multiprocessor
    """

    op = "gemm_int4"
    name = "cuda.wgmma"
    source = _SOURCE

    def __init__(self, decode: MmaInt4) -> None:
        self.decode = decode

    @property
    def prepared_by(self) -> object:
        """``cuda.mma``, whose prepared weight this one reads."""
        return self.decode

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in _DTYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_DTYPES)}"
        if not problem.traits["contiguous"] or not problem.traits["aligned"]:
            yield "tensors are not contiguous, or do not begin at a multiple of 16 bytes"
        if problem.k % 8:
            yield f"k={problem.k} is no multiple of 8"
        if chunks(problem) % 4:
            yield f"k={problem.k} in groups of {problem.group_size} is no multiple of 128"
        if problem.m < _FEWEST_TOKENS:
            yield f"m={problem.m} rows leave most of a tile of {_TOKENS[0]} empty"
        if problem.n > _MOST_COLUMNS or problem.k > _DEEPEST:
            yield f"n={problem.n}, k={problem.k} are beyond what is counted in 32 bits"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tiles, how K is split, and how much is on the way."""
        return _space(_TileShape.of(problem), _fitting(problem.m), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tile and the cluster that a model of the GPU finds fastest."""
        work = _TileWork(problem.n, chunks(problem), tuple([-(-problem.m // tokens) for tokens in _TOKENS]))
        return _fastest(self.space(problem, device), work, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """For more rows than ``cuda.mma`` is made for."""
        return 2.6 if problem.m > 32 else 0.6

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        """The weight of ``cuda.mma``, and whether its zero points are whole."""
        shared = self.decode.prepared(problem, config)
        return shared if problem.symmetric else {**shared, "whole": ("zeros",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """See ``prepared``."""
        return whole(values[0]) if name == "whole" else self.decode.prepare(name, values, problem, config)

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """Nothing: a weight is held once, whatever wins."""
        return self.decode.prepared_config(problem, config)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """The tokens in the order of the products."""
        size = -(-problem.m // config["tokens"]) * config["tokens"] * chunks(problem) * CHUNK
        return {"tiles": TensorSpec.contiguous((size,), problem.torch_dtype, device.torch)}

    def launch(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, Launch]:
        tokens, groups, cluster = config["tokens"], config["groups"], config["cluster"]
        tiles = -(-problem.m // tokens) * -(-problem.n // (_GROUP_COLUMNS * groups))
        # a block goes from tile to tile, but the blocks of a cluster may not all be resident at once
        resident = max(device.multiprocessors, 1) * config["resident"]
        per_block = _TILE_THREADS // _TILE_ROWS
        order = Launch(
            _TILES,
            grid=(-(-problem.m // _TILE_ROWS), -(-chunks(problem) // per_block)),
            args=("tiles", "a", problem.m),
            constants={
                "K": problem.k,
                "CHUNKS": chunks(problem),
                "TOKENS": tokens,
                "ROWS": _TILE_ROWS,
                "THREADS": _TILE_THREADS,
            },
            options={"block": _TILE_THREADS},
        )
        product = Launch(
            kernel(tokens),
            grid=(tiles * cluster if cluster > 1 else min(tiles, resident),),
            args=("y", "tiles", "packed", "factors", *(() if problem.symmetric else ("whole",)), problem.m),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": 4,
                "HALF": problem.dtype == "float16",
                "N": problem.n,
                "K": problem.k,
                "UNIT": unit(problem),
                "PER_COLUMN": problem.group_size == problem.k,
                "SYMMETRIC": problem.symmetric,
                "TOKENS": tokens,
                "GROUPS": groups,
                "ALONG_K": config["along_k"],
                "CLUSTER": cluster,
                "STAGES": config["stages"],
                "RESIDENT": config["resident"],
            },
            options={"block": _threads(config)},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=_shared_bytes(problem.symmetric, unit(problem) // CHUNK, config),
        )
        return order, product


def whole(zeros: torch.Tensor) -> torch.Tensor:
    """int32 ``[1]``: 1 if every zero point is an integer of at most 128, so that 128 more is exact in bfloat16."""
    return ((zeros == zeros.round()) & (zeros.abs() <= 128)).all().to(torch.int32).reshape(1)


class _TileWork(NamedTuple):
    """What the speed of a configuration depends on: columns, chunks along K, tiles along m of each number of tokens."""

    n: int
    chunks: int
    along_m: tuple[int, ...]


@lru_cache(maxsize=len(_TOKENS))
def kernel(tokens: int) -> CudaKernel:
    """The kernel for tiles of so many tokens: PTX names each register of a product, as many as there are tokens."""
    return CudaKernel(f"{_product(tokens)}\n{_SOURCE}", "gemm_int4_wgmma")


def _product(tokens: int) -> str:
    """``multiply_tokens``: one wgmma of 64 columns, ``tokens`` tokens and 16 k's, added to ``sum`` if ``more``."""
    count = tokens // 2
    sums = ", ".join(f"%{place}" for place in range(count))
    a = ", ".join(f"%{count + place}" for place in range(4))
    outputs = ", ".join(f'"+f"(sum[{place}])' for place in range(count))
    operands = f"{{{sums}}}, {{{a}}}, %{count + 4}, p, 1, 1, 0;"
    return f"""
#if HALF
#define WGMMA "wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.f16.f16"
#else
#define WGMMA "wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.bf16.bf16"
#endif
__device__ inline void multiply_tokens(float (&sum)[{count}], const unsigned (&a)[4], unsigned long long tokens,
                                       bool more) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 5}, 0;\\n"
               WGMMA " {operands}\\n}}"
               : {outputs}
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens), "r"((int)more));
}}"""


def _fitting(m: int) -> tuple[bool, ...]:
    """True for each number of tokens whose tiles waste less than half of their last one, or are the smallest."""
    least = next((tokens for tokens in _TOKENS if tokens >= m), _TOKENS[-1])
    return tuple([least / 4 <= tokens <= least and (m < 2 * _TOKENS[-1] or tokens >= 64) for tokens in _TOKENS])


class _TileShape(NamedTuple):
    """What a space depends on: chunks along K and of a unit, groups of 128 columns, whether there are zero points."""

    chunks: int
    unit_chunks: int
    groups: int
    symmetric: bool

    @classmethod
    def of(cls, problem: Problem) -> _TileShape:
        groups = -(-problem.n // _GROUP_COLUMNS)
        return cls(chunks(problem), unit(problem) // CHUNK, groups, problem.symmetric)


@lru_cache(maxsize=_KEPT)
def _space(shape: _TileShape, fitting: tuple[bool, ...], device: Device) -> Space:
    """``fitting``: of each number of tokens, whether it fits m."""
    tokens, limit = dict(zip(_TOKENS, fitting, strict=True)), shared_limit(device.target)
    space = Space(tokens=_TOKENS, groups=[1, 2], along_k=[1, 2], cluster=[1, 2, 4, 8], stages=[4, 6], resident=[1, 2])
    return (
        space.require("tokens fit m", lambda config: tokens[config["tokens"]])
        .require(
            "a block's part of K is whole steps and units", lambda config: not shape.chunks % (config["cluster"] * 4)
        )
        .require("a part of K is long enough to be worth a block", lambda config: _is_long(shape.chunks, config))
        .require("at most two warpgroups multiply", lambda config: _warpgroups(config) <= 2)
        .require("each group has columns", lambda config: config["groups"] <= shape.groups)
        .require("a cluster's blocks add equal shares", lambda config: not config["tokens"] // 4 % config["cluster"])
        .require("sums fit in registers", lambda config: _live_registers(config) <= _registers(config))
        .require(
            "steps and sums fit in shared memory",
            lambda config: config["resident"] * _shared_bytes(shape.symmetric, shape.unit_chunks, config) <= limit,
        )
    )


def _is_long(depth: int, config: Config) -> bool:
    return bool(config["cluster"] == 1 or depth >= 8 * config["cluster"])


def _live_registers(config: Config) -> int:
    """Sums, two chunks of expanded weights, and addresses."""
    return int(config["tokens"] + 2 * 16 + 44)


def _warpgroups(config: Config) -> int:
    """The number of a block's warpgroups that multiply."""
    return int(config["groups"] * config["along_k"])


def _threads(config: Config) -> int:
    """Threads of a block: warpgroups that multiply, and four or two warps that copy."""
    return _warpgroups(config) * _WARPGROUP + (4 if config["resident"] == 1 else 2) * _WARP


def _registers(config: Config) -> int:
    """The registers of each thread that multiplies."""
    if _warpgroups(config) == 2 and config["resident"] == 1:
        return _TAKEN_REGISTERS
    return int(min(_MOST_REGISTERS, _REGISTER_FILE // (config["resident"] * _threads(config)) // 8 * 8))


def _shared_bytes(symmetric: bool, unit_chunks: int, config: Config) -> int:
    """Barriers, steps of tokens, weight and factors, and the sums that a cluster adds."""
    factors = _STRIPES * 8 * (_VECTOR // 2 if symmetric else _VECTOR) * max(1, 2 // unit_chunks)
    step = 8 * config["tokens"] * _VECTOR + config["groups"] * (_STRIPES * 2 * _WARP * _VECTOR + factors)
    split = config["cluster"] * config["along_k"] > 1
    sums = config["tokens"] // 4 * _warpgroups(config) * _WARPGROUP * _VECTOR if split else 0
    return int(_BARRIER_BYTES + config["stages"] * step + sums)


@lru_cache(maxsize=_KEPT)
def _fastest(space: Space, work: _TileWork, device: Device) -> Config:
    return min(space.configs, key=lambda config: _cycles(config, work, device))


def _cycles(config: Config, work: _TileWork, device: Device) -> tuple[float, ...]:
    """Cycles of the busiest multiprocessor, as measured on an H200 within a tenth in the median; then tie breaks."""
    multiprocessors = max(device.multiprocessors, 1)
    tokens, groups, resident = config["tokens"], config["groups"], config["resident"]
    tiles = work.along_m[_TOKENS.index(tokens)] * -(-work.n // (_GROUP_COLUMNS * groups))
    at_once = int(multiprocessors * resident * _USABLE[config["cluster"]] / config["cluster"])
    waves = -(-tiles // max(at_once, 1))
    # of 64 k's, with so many warpgroups that expand weights and share the tensor cores
    step = 740 + 5.3 * tokens if groups == 2 else 450 + 3.5 * tokens
    crowded = 1 + 0.7 * (resident - 1) * min(1.0, tiles * config["cluster"] / (multiprocessors * resident))
    sums = 0 if config["cluster"] * config["along_k"] == 1 else 2000 + 20 * tokens
    each = work.chunks / 2 / config["cluster"] * step * crowded + sums + 2500
    return (waves * each, -config["stages"], resident, config["along_k"])
