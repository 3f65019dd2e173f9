"""Packed weights of 1 to 8 bits on Hopper's warpgroup tensor cores, beside activations of 8 and 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaKernel, read_source, shared_limit

from .hopper import hopper_reasons
from .number import C_TYPES
from .packed_order import STEP, STRIP, packed, steps
from .tensor_map import MatrixTiles, TensorMapImplementation, tensor_map

_SOURCE = read_source(
    f"{__package__}.kernels", "number.cuh", "tensor_core.cuh", "warpgroup.cuh", "tensor_map.cuh", "packed_wgmma.cu"
)
_DTYPES = ("bfloat16", "float16")
_PRODUCTS = {
    "int8": "k32.s32.s8.s8",
    "float8_e4m3fn": "k32.f32.e4m3.e4m3",
    "bfloat16": "k16.f32.bf16.bf16",
    "float16": "k16.f32.f16.f16",
}
_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256)
_BYTES = ("int8", "float8_e4m3fn")
_UNITS = (32, 64, 128)
_WARPGROUP = 128
_WARP = 32
_PATTERN = 1024
_VECTOR = 16
_MOST_REGISTERS = 255
_TAKEN_REGISTERS = 232
_REGISTER_FILE = 65536
_OTHER_REGISTERS = 24
"""Addresses and counters."""
_MOST_COUNTED = 2**31 - 2**12
_DEEPEST = 2**16
"""k's whose products of -128 and -128 add up to less than int32 holds."""
_KEPT = 1024
_ALONE = 1.5
"""The time of products while no other warpgroup multiplies when one adds."""
_USABLE = {1: 1.0, 2: 1.0, 4: 0.2, 8: 0.45}
"""By size of a cluster, the share of the GPU that clusters filled in what was measured: those of four seldom paid."""


class WgmmaPacked(TensorMapImplementation):
    """Warpgroup products (wgmma): the weight's levels, expanded in registers, are the 64-row operand.

    Beside activations of 8 bits they are 8-bit levels themselves, and int8 sums are exact. The copy engine brings
    tokens and weight to shared memory. Where groups have scales of their own, or for float8, sums of a group, at most
    128 k's, are added in float32.

    tokens      rows of a in a tile
    warpgroups  that multiply, side by side
    waves       times 64 columns of each
    cluster     blocks that K is split over
    stages      steps of 128 k's in shared memory
    resident    blocks that share a multiprocessor
    """

    name = "cuda.wgmma"
    source = _SOURCE

    def __init__(self, op: str, bits: int) -> None:
        self.op = op
        self.bits = bits

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in _DTYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_DTYPES)}"
        if not problem.traits["contiguous"] or not problem.traits["aligned"]:
            yield "tensors are not contiguous, or do not begin at a multiple of 16 bytes"
        yield from self._weight_reasons(problem)
        if problem.group_size < problem.k and problem.group_size % min(_UNITS):
            yield f"group_size={problem.group_size} is no multiple of {min(_UNITS)}"
        if problem.k % _VECTOR or problem.k > _DEEPEST:
            yield f"k={problem.k} is no multiple of {_VECTOR} up to {_DEEPEST}"
        if problem.n % STRIP or max(problem.m, problem.n) > _MOST_COUNTED:
            yield f"n={problem.n} is no multiple of {STRIP}, or m={problem.m} is beyond what is counted in 32 bits"

    def _weight_reasons(self, problem: Problem) -> Iterator[str]:
        if problem.act_order:
            yield "the weight has act-order: its groups are not consecutive"
        if problem.zeros == "float" or (problem.zeros == "integer" and _activation(problem) in _BYTES):
            yield f"the weight has zero points: {problem.zeros}, which are not exact beside {_activation(problem)}"
        if self.bits == 8 and _activation(problem) == "float8_e4m3fn":
            yield "levels of 8 bits are exact in int8, not in float8_e4m3fn"

    def space(self, problem: Problem, device: Device) -> Space:
        """Tiles, how K is split, and how much is on the way."""
        return _space(_TileShape.of(problem, self.bits), _fitting(problem.m), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The tile and the cluster that a model of the GPU finds fastest."""
        shape = _TileShape.of(problem, self.bits)
        along_m = tuple([-(-problem.m // tokens) for tokens in _TOKENS])
        return _fastest(self.space(problem, device), shape, along_m, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above the Triton kernel, which unpacks the weight in its loop."""
        return 2.0

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        """The weight in the order of its products, as large as it was."""
        return {"packed": ("qweight",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """See ``prepared``."""
        activation = _activation(problem)
        bits = 8 if activation in _BYTES else 16
        return packed(values[0], problem.k, self.bits, bits, float8=activation == "float8_e4m3fn")

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """Nothing: a weight is held once, whatever wins."""
        return {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        shape, cluster = _TileShape.of(problem, self.bits), config["cluster"]
        tiles = -(-problem.m // config["tokens"]) * -(-shape.strips // _strips(config))
        # a block goes from tile to tile, but the blocks of a cluster may not all be resident at once
        resident = max(device.multiprocessors, 1) * config["resident"]
        activation = _activation(problem)
        # bytes are bytes: those of int8, too
        a = MatrixTiles("float8_e4m3fn" if shape.narrow else activation, problem.m, problem.k, config["tokens"])
        return Launch(
            kernel(activation, config["tokens"]),
            grid=(tiles * cluster if cluster > 1 else min(tiles, resident),),
            args=(
                *tensor_map("a", a),
                "y",
                "scale_a" if shape.narrow else 0,
                "packed",
                "scales",
                "zeros",
                "bias",
                problem.m,
            ),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": 2,
                "HALF": problem.dtype == "float16",
                "A_BITS": 8 if shape.narrow else 16,
                "FLOAT8": activation == "float8_e4m3fn",
                "BITS": self.bits,
                "ZEROS": shape.zeros,
                "N": problem.n,
                "K": problem.k,
                "UNIT": shape.unit,
                "GROUP": min(problem.group_size, problem.k),
                "PER_COLUMN": shape.per_column,
                "STATIC": bool(shape.narrow and problem.static),
                "BIAS": bool(problem.bias),
                "TOKENS": config["tokens"],
                "WARPGROUPS": config["warpgroups"],
                "WAVES": config["waves"],
                "CLUSTER": cluster,
                "STAGES": config["stages"],
                "RESIDENT": config["resident"],
            },
            options={"block": _threads(config)},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=_shared_bytes(shape, config),
        )


@lru_cache(maxsize=64)
def kernel(activation: str, tokens: int) -> CudaKernel:
    """The kernel for tiles of so many tokens: PTX names each register of a product, as many as there are tokens."""
    return CudaKernel(f"{_product(activation, tokens)}\n{_SOURCE}", "packed_wgmma")


def _product(activation: str, tokens: int) -> str:
    """``multiply_tokens``: one wgmma of 64 columns, ``tokens`` tokens and 32 bytes, added to ``sum`` if ``more``."""
    count = tokens // 2
    number, constraint = ("int", "+r") if activation == "int8" else ("float", "+f")
    sums = ", ".join(f"%{place}" for place in range(count))
    a = ", ".join(f"%{count + place}" for place in range(4))
    outputs = ", ".join(f'"{constraint}"(sum[{place}])' for place in range(count))
    signs = {"int8": "", "float8_e4m3fn": ", 1, 1"}.get(activation, ", 1, 1, 0")
    return f"""
__device__ inline void multiply_tokens({number} (&sum)[{count}], const unsigned (&a)[4], unsigned long long tokens,
                                       bool more) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 5}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{tokens}{_PRODUCTS[activation]} "
               "{{{sums}}}, {{{a}}}, %{count + 4}, p{signs};\\n}}"
               : {outputs}
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens), "r"((int)more));
}}"""


def _activation(problem: Problem) -> str:
    """The dtype of the activations: beside whole ones it is that of the scales."""
    return str(problem.dims.get("activation", problem.dtype))


class _TileShape(NamedTuple):
    """What a space depends on.

    ``narrow``: activations of 8 bits; ``zeros``: zero points of the weight's own; ``unit``: k's that are added before a
    scale; ``promoted``: whether these sums are added in float32.
    """

    bits: int
    narrow: bool
    zeros: bool
    strips: int
    steps: int
    unit: int
    per_column: bool
    promoted: bool

    @classmethod
    def of(cls, problem: Problem, bits: int) -> _TileShape:
        per_column, activation = bool(problem.group_size >= problem.k), _activation(problem)
        unit = STEP if per_column else max(unit for unit in _UNITS if problem.group_size % unit == 0)
        promoted = not per_column or activation == "float8_e4m3fn"
        strips, zeros = problem.n // STRIP, problem.zeros != "none"
        return cls(bits, activation in _BYTES, zeros, strips, steps(problem.k), unit, per_column, promoted)


def _fitting(m: int) -> tuple[bool, ...]:
    """True for each number of tokens that fits m: the least that holds them all, or the four largest."""
    least = next((tokens for tokens in _TOKENS if tokens >= m), _TOKENS[-1])
    return tuple([tokens == least or (tokens >= 96 and m > 128) for tokens in _TOKENS])


@lru_cache(maxsize=_KEPT)
def _space(shape: _TileShape, fitting: tuple[bool, ...], device: Device) -> Space:
    """``fitting``: of each number of tokens, whether it fits m."""
    tokens, limit = dict(zip(_TOKENS, fitting, strict=True)), shared_limit(device.target)

    def shared(config: Config) -> int:
        return int(config["resident"]) * _shared_bytes(shape, config)

    space = Space(
        tokens=_TOKENS, warpgroups=[1, 2], waves=[1, 2], cluster=[1, 2, 4, 8], stages=[3, 4, 6, 8, 12], resident=[1, 2]
    )
    return (
        space.require("tokens fit m", lambda config: tokens[config["tokens"]])
        .require("each warpgroup has columns", lambda config: _strips(config) <= shape.strips)
        .require("two warpgroups have two waves", lambda config: config["waves"] <= config["warpgroups"])
        .require("a block's part of K is whole steps", lambda config: not shape.steps % config["cluster"])
        .require("K is split for few tokens", lambda config: _may_split(shape, config))
        .require("sums fit in registers", lambda config: _live_registers(shape, config) <= _registers(config))
        .require("steps and sums fit in shared memory", lambda config: shared(config) <= limit)
        .require("tokens of 8 bits leave room for four steps", lambda config: config["stages"] > 3 or not shape.narrow)
        .require("most of it is used", lambda config: config["stages"] == 12 or 1.6 * shared(config) >= limit)
    )


def _may_split(shape: _TileShape, config: Config) -> bool:
    most = 8 if config["tokens"] <= 64 else 4 if config["tokens"] <= 128 else 1
    return bool(config["cluster"] == 1 or (shape.steps >= 4 * config["cluster"] and config["cluster"] <= most))


def _strips(config: Config) -> int:
    """Strips of 64 columns of a tile."""
    return int(config["warpgroups"] * config["waves"])


def _gives(config: Config) -> bool:
    """Whether a warpgroup that copies gives registers to those that multiply."""
    return bool(config["warpgroups"] == 2 and config["resident"] == 1)


def _threads(config: Config) -> int:
    """Threads of a block: warpgroups that multiply, and the warp or warpgroup that copies."""
    return int(config["warpgroups"] * _WARPGROUP + (_WARPGROUP if _gives(config) else _WARP))


def _registers(config: Config) -> int:
    """The registers of each thread that multiplies."""
    if _gives(config):
        return _TAKEN_REGISTERS
    return int(min(_MOST_REGISTERS, _REGISTER_FILE // (config["resident"] * _threads(config)) // 8 * 8))


def _live_registers(shape: _TileShape, config: Config) -> int:
    """Sums, products that are not yet added to them, and levels of a step, or of two."""
    sums, waves = config["tokens"] // 2, config["waves"]
    products, levels = (sums, 16) if shape.promoted else (0, 32 * waves)
    return int(sums * waves + products + levels + _OTHER_REGISTERS)


def _shared_bytes(shape: _TileShape, config: Config) -> int:
    """Barriers, steps, or the sums that a cluster adds, and as much as aligns them."""
    return int(2 * _PATTERN + max(config["stages"] * _step_bytes(shape, config), _sum_bytes(config)))


def _step_bytes(shape: _TileShape, config: Config) -> int:
    """Tokens, weight and factors of a step."""
    columns = _strips(config) * STRIP
    factors = 0 if shape.per_column else STEP // shape.unit * columns * 2 * (1 + shape.zeros)
    return int(config["tokens"] * STEP * (1 if shape.narrow else 2) + columns * STEP * shape.bits // 8 + factors)


def _sum_bytes(config: Config) -> int:
    return int(config["tokens"] * _strips(config) * STRIP * 4) if config["cluster"] > 1 else 0


@lru_cache(maxsize=_KEPT)
def _fastest(space: Space, shape: _TileShape, along_m: tuple[int, ...], device: Device) -> Config:
    return min(space.configs, key=lambda config: _cycles(config, shape, along_m, device))


def _cycles(config: Config, shape: _TileShape, along_m: tuple[int, ...], device: Device) -> tuple[float, ...]:
    """Cycles of the busiest multiprocessor, by factors fitted to 114 problems on an H200; then tie breaks.

    What it finds fastest takes 1.02 times the time of the fastest in the mean, 1.31 at worst.
    """
    tokens, cluster, resident = config["tokens"], config["cluster"], config["resident"]
    columns, multiprocessors = _strips(config) * STRIP, max(device.multiprocessors, 1)
    tiles = along_m[_TOKENS.index(tokens)] * -(-shape.strips // _strips(config))
    at_once = max(int(multiprocessors * resident * _USABLE[cluster] / cluster), 1)
    sharing = min(resident, max(1.0, tiles * cluster / multiprocessors))
    # of 128 k's: products, bytes, and what a step waits for whatever its size
    rate = 4096 if shape.narrow else 2048
    multiplied = columns * tokens * STEP / rate * (2.5 if shape.promoted else 1.45) * sharing
    if shape.promoted and config["warpgroups"] * sharing < 2:
        multiplied *= _ALONE
    fetched = _step_bytes(shape, config) / 43 * sharing
    step = max(multiplied, fetched, 450 + 2.5 * tokens * config["waves"])
    sums = 0 if cluster == 1 else 5000 + 200 * cluster + 12 * tokens * _strips(config)
    each = shape.steps / cluster * step + sums + 2000
    return (-(-tiles // at_once) * each, -config["stages"], resident, config["waves"])
