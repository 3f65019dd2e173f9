"""attention_decode on the tensor cores of mma.sync, with keys and values that go from memory to registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source, shared_limit
from registry.backends.head_strides import outer_strides
from registry.backends.programmatic_launch import launches_dependents, pdl_options

from .number import C_TYPES

_SOURCE = read_source(f"{__package__}.kernels", "number.cuh", "tensor_core.cuh", "dependent.cuh", "attention_decode.cu")
_KERNEL = CudaKernel(_SOURCE, "attention_decode")
_FLOAT8 = "float8_e4m3fn"
_DTYPES = ("bfloat16", "float16")
_VECTOR = 16
_NARROW = 8
"""Rows of queries of a product."""
_MOST_ROWS = 2 * _NARROW
_MOST_DIM = 256
_STEP = 16
_WARP = 32
_REGISTER_FILE = 65536
_MOST_REGISTERS = 255
_OTHER_REGISTERS, _OF_ADDRESSES = 20, 20
"""Logits and counters; addresses of each step ahead."""
_SHORT = 2048
"""Keys up to which one launch is faster than a launch of parts and one that combines them, on an H200."""
_GRID_LIMIT = 2**31 - 1
_DRIVERS = 1024
"""Shared memory of a block that the driver keeps."""
_KEPT = 1024


class MmaDecode(CudaImplementation):
    """Tensor cores (mma.sync) on keys and values that go from memory to registers, in the order of PTX's fragments.

    The rows of queries that share a head of the cache are the 8-wide operand, once or twice. From compute capability
    9.0 on a cluster's blocks share a sequence, and combine what they found in one launch, which is a dependent one.

    warps      of a block, which take 16 keys in turn
    ahead      times 16 keys of a warp that are in registers or on their way
    cluster    blocks of a sequence
    resident   blocks that share a multiprocessor
    """

    op = "attention_decode"
    name = "cuda.mma"
    source = _SOURCE

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in _DTYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_DTYPES)}"
        float8 = problem.kv_dtype == _FLOAT8
        needed = (8, 9) if float8 else (8, 0)
        if device.type == "cuda" and device.capability < needed:
            kind, there = f"a cache of {_FLOAT8}" if float8 else "it", ".".join(map(str, device.capability))
            yield f"{kind} needs compute capability {needed[0]}.{needed[1]}, this GPU has {there}"
        whole = 128 if float8 else 64
        if problem.head_dim % whole or problem.head_dim > _MOST_DIM:
            yield f"head_dim={problem.head_dim} is no multiple of {whole} up to {_MOST_DIM}"
        elif _rows(problem) > _MOST_ROWS:
            yield f"{_rows(problem)} rows of queries share a head of keys (limit {_MOST_ROWS})"
        elif not self.space(problem, device).configs:
            yield f"{_rows(problem)} rows of queries of {problem.head_dim} elements do not fit in registers"
        if not problem.traits["aligned"]:
            yield f"tensors do not begin at multiples of {_VECTOR} bytes"
        yield from _stride_reasons(problem)
        if not problem.traits.contiguous("kv_lens"):
            yield "kv_lens is not contiguous"
        if problem.page and _table_row(problem) is None:
            yield "the pages of a sequence are not neighbours in block_table"
        if problem.batch * problem.kv_heads * 8 > _GRID_LIMIT:
            yield f"batch={problem.batch} times {problem.kv_heads} heads are more blocks than a grid holds"

    def space(self, problem: Problem, device: Device) -> Space:
        """Warps, and how a sequence is shared."""
        return _space(_Shape.of(problem), device.capability >= (9, 0), shared_limit(device.target))

    def default(self, problem: Problem, device: Device) -> Config:
        """Eight warps, and the cluster that has about a block for each multiprocessor."""
        sequences = max(1, problem.batch * problem.kv_heads)
        return _nearest(self.space(problem, device), min(8, device.multiprocessors // sequences))

    def preference(self, problem: Problem, device: Device) -> float:
        """On Hopper ahead of the Triton forms: of short sequences, of float8, of many sequences in pages."""
        fast = problem.kv_len <= _SHORT or problem.kv_dtype == _FLOAT8
        fast = fast or bool(problem.page and problem.batch * problem.kv_heads >= device.multiprocessors)
        return 2.5 if fast and device.capability >= (9, 0) else 0.9

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        shape, cluster, dependent = _Shape.of(problem), config["cluster"], launches_dependents(device)
        strides = [_strides(problem, name) or (0, 0, 0) for name in ("q", "k_cache", "v_cache")]
        return Launch(
            _KERNEL,
            grid=(problem.batch * problem.kv_heads * cluster,),
            args=(
                "out",
                "lse",
                "q",
                "k_cache",
                "v_cache",
                "kv_lens",
                "block_table",
                "k_scale",
                "v_scale",
                "scale" if _has_scale(problem) else float(problem.head_dim) ** -0.5,
                "softcap",
                *(stride for each in strides for stride in each),
                _table_row(problem) or 0,
                problem.kv_len,
            ),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "VEC": 4,
                "HALF": problem.dtype == "float16",
                "FLOAT8": shape.cell == 1,
                "DIM": problem.head_dim,
                "KV_HEADS": problem.kv_heads,
                "GROUP": problem.heads // problem.kv_heads,
                "TOKENS": problem.q_len,
                "PAGE": int(problem.page),
                "WINDOW": int(problem.span) - 1,
                "SOFTCAP": problem.softcap,
                "WARPS": config["warps"],
                "AHEAD": config["ahead"],
                "CLUSTER": cluster,
                "RESIDENT": config["resident"],
                "DEPENDENT": dependent,
            },
            options={"block": config["warps"] * _WARP, **pdl_options(dependent)},
            cluster=(cluster,) if cluster > 1 else (),
            shared_bytes=_shared_bytes(shape, config),
        )


def _rows(problem: Problem) -> int:
    """Rows of queries that share a head of keys: heads of the group, times tokens."""
    return int(problem.heads) // int(problem.kv_heads) * int(problem.q_len)


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    if name == "q":
        return outer_strides(problem, name, (problem.q_len, problem.heads, problem.head_dim))
    return outer_strides(problem, name, (problem.page or problem.kv_len, problem.kv_heads, problem.head_dim))


def _stride_reasons(problem: Problem) -> Iterator[str]:
    for name in ("q", "k_cache", "v_cache"):
        size = 1 if name != "q" and problem.kv_dtype == _FLOAT8 else problem.torch_dtype.itemsize
        strides = _strides(problem, name)
        if strides is None:
            yield f"the elements of a head of {name} are not neighbours"
        elif any(stride * size % _VECTOR for stride in strides):
            yield f"heads of {name} do not begin at multiples of {_VECTOR} bytes"


def _table_row(problem: Problem) -> int | None:
    """Elements of the table from a sequence to the next; 0 without a table, None unless a row's are neighbours."""
    if not problem.page:
        return 0
    found = outer_strides(problem, "block_table", (problem.kv_len // problem.page,))
    return None if found is None else found[0]


def _has_scale(problem: Problem) -> bool:
    return problem.traits.arguments is not None and problem.traits.present("scale")


class _Shape(NamedTuple):
    """What a space depends on: elements of a head, bytes of one in the cache, rows of queries."""

    dim: int
    cell: int
    rows: int

    @classmethod
    def of(cls, problem: Problem) -> _Shape:
        cell = 1 if problem.kv_dtype == _FLOAT8 else 2
        return cls(int(problem.head_dim), cell, _rows(problem))


@lru_cache(maxsize=_KEPT)
def _space(shape: _Shape, clusters: bool, limit: int) -> Space:
    def fits(config: Config) -> bool:
        return bool(config["resident"] * (_shared_bytes(shape, config) + _DRIVERS) <= limit)

    space = Space(warps=[4, 8, 16], ahead=[1, 2], cluster=[1, 2, 4, 8] if clusters else [1], resident=[1, 2, 3, 4])
    return (
        space.require("warps have registers", lambda config: _live_registers(shape, config) <= _registers(config))
        .require("more would not be used", lambda config: config["resident"] * config["warps"] >= 8)
        .require("sums of warps fit in shared memory", fits)
    )


def _registers(config: Config) -> int:
    """Registers that each thread of a block has."""
    return int(min(_MOST_REGISTERS, _REGISTER_FILE // (config["resident"] * config["warps"] * _WARP) // 8 * 8))


def _live_registers(shape: _Shape, config: Config) -> int:
    """Sums and queries of 8 rows or of 16, keys and values of the steps ahead."""
    tiles, step = -(-shape.rows // _NARROW), 2 * shape.dim * shape.cell * _STEP // (4 * _WARP)
    of_rows = tiles * (shape.dim // 4 + shape.dim // 8)
    return int(of_rows + config["ahead"] * (step + _OF_ADDRESSES) + _OTHER_REGISTERS)


def _shared_bytes(shape: _Shape, config: Config) -> int:
    """Sums and weights of each row, of each warp; a barrier, and what a block gets from those of its cluster."""
    vectors, cluster = shape.rows * shape.dim // 4, config["cluster"]
    sent = 0 if cluster == 1 else 1 + 2 * cluster * -(-vectors // cluster)
    return int((config["warps"] * (vectors + shape.rows) + sent) * _VECTOR)


@lru_cache(maxsize=_KEPT)
def _nearest(space: Space, cluster: int) -> Config:
    def distance(config: Config) -> tuple[int, ...]:
        return abs(config["cluster"] - cluster), config["ahead"], abs(config["warps"] - 8), config["resident"]

    return min(space.configs, key=distance)
