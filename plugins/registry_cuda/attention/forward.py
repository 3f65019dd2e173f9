"""attention's forward as FlashAttention 3 has it: tiles by the copy engine, warpgroups that take turns to multiply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaKernel, read_source, shared_limit

from ..hopper import hopper_reasons
from ..number import C_TYPES
from ..tensor_map import WIDTH, TensorMapImplementation, tensor_map
from .head_tiles import VECTOR, head_tiles, tile_reasons

_SOURCE = "\n".join(
    (
        read_source("registry_cuda.kernels", "tensor_map.cuh", "tensor_core.cuh", "warpgroup.cuh"),
        read_source("registry_cuda.attention.kernels", "head_tiles.cuh", "forward.cu"),
    )
)
_PTX_TYPES = {"bfloat16": "bf16", "float16": "f16"}
_PART = 64
"""Elements of a head in a row of 128 bytes."""
_MOST_DIM = 128
"""Sums of 64 rows of longer heads leave no registers for scores and weights."""
_WARPGROUP = 128
_WARPGROUP_ROWS = 64
_PATTERN = 1024
_LEAST_SCALE = 1e-30
_REGISTERS = {1: 255, 2: 240, 3: 160}
"""Of a thread of so many warpgroups that multiply."""
_OTHER_REGISTERS = 32
"""Of a thread beside sums, scores and weights."""
_KEYS = (64, 80, 96, 128, 160, 176, 192)
_LONG_HEADS = {"warpgroups": 2, "keys": 192, "stages": 3}
_SHORT_HEADS = {"warpgroups": 2, "keys": 176, "stages": 5}
_SHORT_CAUSAL_HEADS = {"warpgroups": 3, "keys": 128, "stages": 6}
_KEPT_BYTES = 32 << 20
"""Keys and values that stay in L2 while queries pass over them."""
_MOST_COUNTED = 2**31 - 2**12
_KEPT = 1024


class WgmmaAttention(TensorMapImplementation):
    """One thread asks the copy engine for tiles; warpgroups multiply, and compute exponentials meanwhile.

    A warpgroup has 64 rows of queries. It multiplies the weights of one block of keys with its values while the
    products of the next block are formed. One block of threads a multiprocessor goes from tile to tile.

    warpgroups  that multiply
    keys        of a block
    stages      blocks of keys or of values in shared memory
    in_turn     warpgroups multiply one after the other
    """

    op = "attention"
    name = "cuda.wgmma"
    source = _SOURCE

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in _PTX_TYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_PTX_TYPES)}"
            return
        yield from _form_reasons(problem)
        yield from tile_reasons(problem, "q", "k", "v")

    def space(self, problem: Problem, device: Device) -> Space:
        """Queries and keys of a tile, how far ahead keys and values are fetched, and whether warpgroups take turns."""
        return _space(_parts(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """What is fastest at 2048 to 16384 tokens on an H200; fewer rows or keys where there are no more."""
        config = _LONG_HEADS if _parts(problem) > 1 else _SHORT_CAUSAL_HEADS if problem.causal else _SHORT_HEADS
        warpgroups = min(config["warpgroups"], max(1, -(-problem.q_len // _WARPGROUP_ROWS)))
        return _nearest(
            self.space(problem, device), {**config, "warpgroups": warpgroups}, max(problem.kv_len, _KEYS[0])
        )

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 ahead of cuDNN in causal attention, 689 to 628 TFLOP/s over 8192 tokens, else 3% behind it."""
        if problem.q_len < _WARPGROUP_ROWS:
            return 0.7
        return 2.0 if problem.causal else 1.4

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        warpgroups, keys = config["warpgroups"], config["keys"]
        rows, heads = warpgroups * _WARPGROUP_ROWS, problem.batch * problem.heads
        blocks = -(-problem.q_len // rows)
        maps: tuple[str | int, ...] = ()
        for name, height in (("q", rows), ("k", keys), ("v", keys)):
            tiles = head_tiles(problem, name, height)
            assert tiles is not None
            maps += tensor_map(name, tiles)
        return Launch(
            kernel(problem.dtype, keys, _parts(problem)),
            grid=(min(heads * blocks, device.multiprocessors),),
            args=(
                *maps,
                "out",
                "lse",
                _scale(problem),
                problem.q_len,
                problem.kv_len,
                heads,
                _together(problem),
                blocks,
            ),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "DIM": problem.head_dim,
                "HEADS": problem.heads,
                "GROUP": problem.heads // problem.kv_heads,
                "CAUSAL": problem.causal,
                "WINDOW": int(problem.span) - 1,
                "WARPGROUPS": warpgroups,
                "KEYS": keys,
                "STAGES": config["stages"],
                "IN_TURN": config["in_turn"],
            },
            options={"block": (warpgroups + 1) * _WARPGROUP},
            shared_bytes=_shared_bytes(_parts(problem), config),
        )


def _form_reasons(problem: Problem) -> Iterator[str]:
    """Why the kernel does not take the form of a problem, or its sizes."""
    if problem.mask != "none":
        yield "it takes no mask"
    if problem.softcap:
        yield "it takes no softcap"
    if problem.kv_len == 0:
        yield "there are no keys"
    if problem.head_dim > _MOST_DIM or problem.head_dim * 2 % VECTOR:
        yield f"head_dim={problem.head_dim} is no multiple of {VECTOR // 2} up to {_MOST_DIM}"
    arguments = problem.traits.arguments
    scale = None if arguments is None else arguments["scale"]
    if isinstance(scale, float) and scale < _LEAST_SCALE:
        yield f"scale={scale} (at least {_LEAST_SCALE}: the largest logit of a row is that of its largest product)"
    counted = problem.batch * problem.heads * -(-problem.q_len // _WARPGROUP_ROWS)
    if max(counted, problem.q_len + problem.kv_len) > _MOST_COUNTED:
        yield f"{counted} tiles, q_len={problem.q_len}, kv_len={problem.kv_len} are beyond what is counted in 32 bits"


def _parts(problem: Problem) -> int:
    return -(-int(problem.head_dim) // _PART)


def _scale(problem: Problem) -> str | float:
    """The call's own scale, or the number that stands for none, to the same compiled kernel."""
    arguments = problem.traits.arguments
    given = arguments is not None and arguments["scale"] is not None
    return "scale" if given else float(problem.head_dim) ** -0.5


def _together(problem: Problem) -> int:
    """Heads whose queries run at once: those whose keys and values stay in L2, and at least those that share some."""
    group = problem.heads // problem.kv_heads
    each = 4 * problem.kv_len * problem.head_dim
    return int(min(problem.batch * problem.heads, max(1, _KEPT_BYTES // each) * group))


@lru_cache(maxsize=64)
def kernel(dtype: str, keys: int, parts: int) -> CudaKernel:
    """The kernel for blocks of so many keys and heads of ``parts`` times 64: PTX names each register of a product."""
    products = _product("multiply_keys", keys, dtype, "unsigned long long a", ['"l"(a)'], "0, 0")
    words = [f'"r"(a[{place}])' for place in range(4)]
    values = _product("multiply_values", parts * _PART, dtype, "const unsigned (&a)[4]", words, "1")
    return CudaKernel(f"{products}\n{values}\n{_SOURCE}", "attention_forward")


def _product(name: str, columns: int, dtype: str, parameter: str, operand: list[str], transposed: str) -> str:
    """A function of one wgmma of 64 rows, so many columns and 16 k's, added to ``sum`` if ``more``.

    ``operand``: the left one, a descriptor or the words of registers; ``transposed``: which operands have k's as rows.
    """
    count = columns // 2
    sums = ", ".join(f"%{place}" for place in range(count))
    outputs = ", ".join(f'"+f"(sum[{place}])' for place in range(count))
    first, right = count, count + len(operand)
    left = f"%{first}" if len(operand) == 1 else f"{{{', '.join(f'%{place}' for place in range(first, right))}}}"
    kind = f"m64n{columns}k16.f32.{_PTX_TYPES[dtype]}.{_PTX_TYPES[dtype]}"
    return f"""
__device__ inline void {name}(float (&sum)[{count}], {parameter}, unsigned long long b, bool more) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{right + 1}, 0;\\n"
               "wgmma.mma_async.sync.aligned.{kind} {{{sums}}}, {left}, %{right}, p, 1, 1, {transposed};\\n}}"
               : {outputs}
               : {", ".join(operand)}, "l"(b), "r"((int)more));
}}"""


@lru_cache(maxsize=_KEPT)
def _space(parts: int, device: Device) -> Space:
    """A space for all sizes: what is compiled for one serves all."""
    limit = shared_limit(device.target)
    return (
        Space(warpgroups=[1, 2, 3], keys=list(_KEYS), stages=[2, 3, 4, 5, 6, 8], in_turn=[True, False])
        .require("sums, scores and weights fit in registers", lambda config: _registers_suffice(parts, config))
        .require("tiles fit in shared memory", lambda config: _shared_bytes(parts, config) <= limit)
        .require("half of it is used", lambda config: _fills(parts, config, limit))
        .require("one warpgroup has no turns", lambda config: config["warpgroups"] > 1 or not config["in_turn"])
    )


def _registers_suffice(parts: int, config: Config) -> bool:
    """Whether a thread has room for sums, scores, and weights, which are two in a register."""
    live = parts * _PART // 2 + config["keys"] // 2 + config["keys"] // 4
    return bool(live + _OTHER_REGISTERS <= _REGISTERS[config["warpgroups"]])


def _fills(parts: int, config: Config, limit: int) -> bool:
    return bool(config["stages"] == 8 or 2 * _shared_bytes(parts, config) >= limit)


def _shared_bytes(parts: int, config: Config) -> int:
    """Barriers, queries, stages, and as much as aligns them."""
    rows = config["warpgroups"] * _WARPGROUP_ROWS + config["stages"] * config["keys"]
    return int(2 * _PATTERN + rows * parts * WIDTH)


def _nearest(space: Space, wanted: Mapping[str, int], most_keys: int) -> Config:
    """The configuration of ``space`` nearest to ``wanted``, with blocks of ``most_keys`` or fewer."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["warpgroups"] - wanted["warpgroups"]), max(0, config["keys"] - most_keys),
            abs(config["keys"] - wanted["keys"]), not config["in_turn"], abs(config["stages"] - wanted["stages"]),
        )  # fmt: skip

    return min(space.configs, key=distance)
