"""Dense and float8 products on Hopper's warpgroup tensor cores: tiles by the copy engine, one persistent kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaKernel, read_source, shared_limit

from .hopper import hopper_reasons
from .number import C_TYPES
from .tensor_map import WIDTH, MatrixTiles, TensorMapImplementation, tensor_map

_SOURCE = read_source(f"{__package__}.kernels", "tensor_map.cuh", "tensor_core.cuh", "warpgroup.cuh", "wgmma_gemm.cu")
_PRODUCTS = {"bfloat16": "k16.f32.bf16.bf16", "float16": "k16.f32.f16.f16", "float8_e4m3fn": "k32.f32.e4m3.e4m3"}
_ELEMENTS = {**C_TYPES, "float8_e4m3fn": "unsigned char"}
_SCALES = {"": "NO_SCALES", "tensor": "TENSOR", "row": "ROW", "block": "BLOCK"}
_SCALE_BLOCK = 128
_WARPGROUP = 128
_PATTERN = 1024
_OUTPUT_BYTES = 4096
"""Of a warp, for what it stores."""
_STORED_ROWS = 16
_MOST_SUMS = 128
_MOST_WITH_PARTS = 192
"""Accumulators of a thread, alone and beside the products that are not yet added to them."""
_FEWEST_ROWS = 17
_MOST_COUNTED = 2**31 - 2**12
_MANY_WAVES = 4
_KEPT = 1024


class WgmmaGemm(TensorMapImplementation):
    """Base: ``y = a @ b.T``, scaled and with a bias, by tiles on wgmma.

    One warp asks the copy engine for tiles ahead and warpgroups multiply, as CUTLASS's warp-specialised kernels do;
    float8 sums are promoted to float32 after each 128 k's, as DeepGEMM does.

    block_m, block_n  tile
    warpgroups        that multiply, each its part of the rows
    stages            steps of 128 bytes of K in shared memory
    cluster           blocks that share an operand: each fetches its part for all
    group_m           rows of tiles in a band of those that run at once
    """

    name = "cuda.wgmma"
    source = _SOURCE
    operands: tuple[str, str]
    """The names of the arguments that are a and b."""

    @abstractmethod
    def scales(self, problem: Problem) -> str:
        """The kind of scales, empty for none."""

    @abstractmethod
    def output(self, problem: Problem) -> str:
        """The dtype of y."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in _PRODUCTS:
            yield f"dtype is {problem.dtype}, expected {', '.join(_PRODUCTS)}"
            return
        if not problem.traits["contiguous"] or not problem.traits["aligned"]:
            yield "tensors are not contiguous, or do not begin at a multiple of 16 bytes"
        for name, size, dtype in (("k", problem.k, problem.dtype), ("n", problem.n, self.output(problem))):
            if size * _itemsize(dtype) % 16:
                yield f"{name}={size} in {dtype} are no multiple of 16 bytes"
        if problem.m < _FEWEST_ROWS:
            yield f"m={problem.m} rows leave most of a tile of 64 empty"
        if max(problem.m, problem.n, problem.k, problem.m * -(-problem.k // _SCALE_BLOCK)) > _MOST_COUNTED:
            yield f"m={problem.m}, n={problem.n}, k={problem.k} are beyond what is counted in 32 bits"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tiles, how far ahead they are fetched, and their order."""
        return _space(_itemsize(problem.dtype), next((rows for rows in (64, 128) if problem.m <= rows), 256), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tile and the cluster that a model of the GPU finds fastest."""
        steps = -(-problem.k * _itemsize(problem.dtype) // WIDTH)
        sums = "promoted" if _itemsize(problem.dtype) == 1 else "plain"
        sums = "scaled" if self.scales(problem) == "block" else sums
        whole_tiles = -(-problem.m // 64) * 64
        return _fastest(self.space(problem, device), _GemmSize(whole_tiles, problem.n, steps, sums), device)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        m, n, k, cluster, output = problem.m, problem.n, problem.k, config["cluster"], self.output(problem)
        block_m, block_n, warpgroups = config["block_m"], config["block_n"], config["warpgroups"]
        first, other = _shared_by(config)
        a = MatrixTiles(problem.dtype, m, k, block_m // other)
        b = MatrixTiles(problem.dtype, n, k, block_n // first)
        y = MatrixTiles(output, m, n, _STORED_ROWS)
        scales = self.scales(problem)
        return Launch(
            kernel(problem.dtype, block_n),
            grid=(min(_clusters(m, n, config), max(device.multiprocessors, cluster) // cluster) * cluster,),
            args=(
                *tensor_map(self.operands[0], a), *tensor_map(self.operands[1], b), *tensor_map("y", y),
                *(("scale_a", "scale_b") if scales else (0, 0)), "bias", m, n, k,
            ),
            constants={
                "ELEMENT": _ELEMENTS[problem.dtype],
                "OUTPUT": C_TYPES[output],
                "SCALES": _SCALES[scales],
                "BIAS": problem.bias,
                "BLOCK_N": block_n,
                "WARPGROUPS": warpgroups,
                "WAVES": block_m // (64 * warpgroups),
                "STAGES": config["stages"],
                "CLUSTER": cluster,
                "GROUP_M": config["group_m"],
            },
            options={"block": (warpgroups + 1) * _WARPGROUP},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=_shared_bytes(config),
        )  # fmt: skip


class _GemmSize(NamedTuple):
    """What the speed of a configuration depends on: rows, columns, steps of 128 bytes along K.

    ``sums``: ``"plain"``, ``"promoted"`` after each step, or ``"scaled"`` then, too.
    """

    m: int
    n: int
    steps: int
    sums: str


def _itemsize(dtype: str) -> int:
    found: torch.dtype = getattr(torch, dtype)
    return found.itemsize


@lru_cache(maxsize=64)
def kernel(dtype: str, block_n: int) -> CudaKernel:
    """The kernel for operands of ``dtype`` and tiles of ``block_n`` columns: PTX names each register of a product."""
    return CudaKernel(f"{_product(dtype, block_n)}\n{_SOURCE}", "wgmma_gemm")


def _product(dtype: str, block_n: int) -> str:
    """``multiply_tile``: one wgmma of 64 rows and 32 bytes of K, added to ``sum`` if ``more``."""
    count = block_n // 2
    sums = ", ".join(f"%{place}" for place in range(count))
    outputs = ", ".join(f'"+f"(sum[{place}])' for place in range(count))
    transposed = "" if dtype == "float8_e4m3fn" else ", 0, 0"
    operands = f"{{{sums}}}, %{count}, %{count + 1}, p, 1, 1{transposed};"
    return f"""
__device__ inline void multiply_tile(float (&sum)[{count}], unsigned long long a, unsigned long long b, bool more) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{block_n}{_PRODUCTS[dtype]} {operands}\\n}}"
               : {outputs}
               : "l"(a), "l"(b), "r"((int)more));
}}"""


@lru_cache(maxsize=_KEPT)
def _space(itemsize: int, tallest: int, device: Device) -> Space:
    """``tallest``: rows of the tallest tile that fits m."""
    limit = shared_limit(device.target)
    space = Space(
        block_m=[64, 128, 256],
        block_n=[64, 128, 192, 256],
        warpgroups=[1, 2],
        stages=[3, 4, 6, 8],
        cluster=[1, 2],
        group_m=[8, 16],
    )
    return (
        space.require("tiles fit m", lambda config: tallest // 2 <= config["block_m"] <= tallest)
        .require("tiles are not narrow", lambda config: config["block_m"] <= 2 * config["block_n"])
        .require("a cluster's blocks have rows", lambda config: tallest > 128 or _shared_by(config)[0] == 1)
        .require("each warpgroup has 64 rows, or 128", lambda config: _waves(config) in (1, 2))
        .require("sums fit in registers", lambda config: _sums_fit(itemsize, config))
        .require("steps fit in shared memory", lambda config: _shared_bytes(config) <= limit)
        .require("half of it is used", lambda config: config["stages"] == 8 or 2 * _shared_bytes(config) >= limit)
    )


def _waves(config: Config) -> float:
    """Times 64 rows of each warpgroup."""
    return float(config["block_m"] / (64 * config["warpgroups"]))


def _sums_fit(itemsize: int, config: Config) -> bool:
    sums = _waves(config) * config["block_n"] / 2
    return bool(sums <= _MOST_SUMS and (itemsize > 1 or sums + config["block_n"] / 2 <= _MOST_WITH_PARTS))


def _shared_by(config: Config) -> tuple[int, int]:
    """Blocks of a cluster along m, which share b, and along n, which share a: the wider operand is shared."""
    cluster = int(config["cluster"])
    return (1, cluster) if config["block_m"] > config["block_n"] else (cluster, 1)


def _clusters(m: int, n: int, config: Config) -> int:
    """Clusters that would have a tile for each of their blocks."""
    along_m, along_n = _shared_by(config)
    return int(-(-m // (config["block_m"] * along_m)) * -(-n // (config["block_n"] * along_n)))


def _shared_bytes(config: Config) -> int:
    """Barriers, steps, what is stored, and as much as aligns them."""
    stage = (config["block_m"] + config["block_n"]) * WIDTH
    return int(2 * _PATTERN + config["stages"] * stage + 4 * config["warpgroups"] * _OUTPUT_BYTES)


@lru_cache(maxsize=_KEPT)
def _fastest(space: Space, size: _GemmSize, device: Device) -> Config:
    return min(space.configs, key=lambda config: _cycles(config, size, device))


def _cycles(config: Config, size: _GemmSize, device: Device) -> tuple[float, ...]:
    """Cycles of the busiest multiprocessor, by factors measured on an H200; then tie breaks."""
    block_m, block_n, cluster = config["block_m"], config["block_n"], config["cluster"]
    along_m, along_n = _shared_by(config)
    at_once = max(device.multiprocessors // cluster, 1)
    waves = -(-_clusters(size.m, size.n, config) // at_once)
    # of 128 bytes of K: the tensor cores multiply 32 columns of a row in a cycle, L2 sends about 64 bytes
    fetched = (block_m / along_n + block_n / along_m) * WIDTH / 64
    shared = 1.0 if cluster == 1 else 1.01 if waves < _MANY_WAVES else 0.99
    step = max(block_m * block_n / 32 * _slower(config, size.sums), fetched) * shared
    each = size.steps * step + block_m * block_n / 16 + 1000
    return (waves * each, -config["warpgroups"], -config["stages"], config["group_m"])


def _slower(config: Config, sums: str) -> float:
    """The time of a step over that of the fastest tile's."""
    if config["block_n"] == 64:
        return 1.3
    if sums == "plain":
        return 1.0 if config["block_n"] == 128 else 1.04
    if _waves(config) == 1 and config["block_n"] == 128:
        return 1.0
    # a warpgroup waits for its products before it adds them
    if config["warpgroups"] == 1:
        return 1.5
    return 1.15 if sums == "scaled" else 1.0 if config["block_n"] == 192 else 1.07
