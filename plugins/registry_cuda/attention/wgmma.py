"""Attention's forward as FlashAttention 3 has it: tiles by the copy engine, warpgroups that take turns to multiply."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaKernel, read_source, shared_limit

from ..hopper import hopper_reasons
from ..number import C_TYPES
from ..tensor_map import WIDTH, TensorMapImplementation, tensor_map
from .head_tiles import VECTOR, HeadTiles, tile_reasons

_PTX_TYPES = {"bfloat16": "bf16", "float16": "f16"}
_PART = 64
"""Elements of a head in a row of 128 bytes."""
_MOST_DIM = 256
"""Sums of 64 rows of longer heads leave no registers for scores and weights."""
_WARPGROUP = 128
WARPGROUP_ROWS = 64
_PATTERN = 1024
_LEAST_SCALE = 1e-30
_REGISTERS = {1: 255, 2: 240, 3: 160}
"""Of a thread of so many warpgroups that multiply."""
_OTHER_REGISTERS = {False: 32, True: 40}
"""Of a thread beside sums, scores and weights, without and with a soft cap."""
_KEYS = (64, 80, 96, 128, 160, 176, 192)
_LONGEST_HEADS = {"warpgroups": 2, "keys": 80, "stages": 4}
_LONGER_HEADS = {"warpgroups": 2, "keys": 128, "stages": 3}
_LONG_HEADS = {"warpgroups": 2, "keys": 192, "stages": 3}
_SHORT_HEADS = {"warpgroups": 2, "keys": 176, "stages": 5}
_SHORT_CAUSAL_HEADS = {"warpgroups": 3, "keys": 128, "stages": 6}
_DEFAULTS = {2: _LONG_HEADS, 3: _LONGER_HEADS, 4: _LONGEST_HEADS}
"""By parts of a head."""
_KEPT_BYTES = 32 << 20
"""Keys and values that stay in L2 while queries pass over them."""
_MOST_COUNTED = 2**31 - 2**12
_KEPT = 1024


class WgmmaForward(TensorMapImplementation):
    """Base of attention's forward by wgmma: one thread has tiles copied, warpgroups multiply and compute exponentials.

    A warpgroup has 64 rows of queries. It multiplies the weights of one block of keys with its values while the
    products of the next block are formed. One block of threads a multiprocessor goes from tile to tile.

    warpgroups  that multiply
    keys        of a block
    stages      blocks of keys or of values in shared memory
    in_turn     warpgroups multiply one after the other
    """

    name = "cuda.wgmma"
    function: str
    """The kernel's name in ``source``."""

    @abstractmethod
    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensor ``q``, ``k`` or ``v`` in tiles of so many rows; None if a head's elements are apart."""

    @abstractmethod
    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of a sequence, in the mean."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in _PTX_TYPES:
            yield f"dtype is {problem.dtype}, expected {' or '.join(_PTX_TYPES)}"
            return
        yield from _form_reasons(problem)
        yield from tile_reasons(problem, {name: self.tiles(problem, name, 1) for name in ("q", "k", "v")})

    def space(self, problem: Problem, device: Device) -> Space:
        """Queries and keys of a tile, how far ahead keys and values are fetched, and whether warpgroups take turns."""
        return _space(_parts(problem), problem.softcap, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """What is fastest at 2048 to 16384 tokens on an H200; fewer rows or keys where there are no more."""
        config = _DEFAULTS.get(_parts(problem)) or (_SHORT_CAUSAL_HEADS if problem.causal else _SHORT_HEADS)
        queries, keys = self.lengths(problem)
        warpgroups = min(config["warpgroups"], max(1, -(-queries // WARPGROUP_ROWS)))
        return _nearest(self.space(problem, device), {**config, "warpgroups": warpgroups}, max(keys, _KEYS[0]))

    def maps(self, problem: Problem, config: Config) -> tuple[str | int, ...]:
        """A launch's arguments that are the tensor maps of queries, keys and values."""
        found: tuple[str | int, ...] = ()
        for name, height in (("q", rows_of(config)), ("k", config["keys"]), ("v", config["keys"])):
            tiles = self.tiles(problem, name, height)
            assert tiles is not None
            found += tensor_map(name, tiles)
        return found

    def launch_of(
        self, problem: Problem, config: Config, device: Device, tiles: int, sizes: tuple[str | float, ...]
    ) -> Launch:
        """The launch over ``tiles`` tiles of queries of all heads.

        ``sizes`` are its arguments behind the outputs: offsets, if the op has them, scale, soft cap, and numbers.
        """
        return Launch(
            kernel(self.source, self.function, problem.dtype, config["keys"], _parts(problem)),
            grid=(max(1, min(tiles, device.multiprocessors)),),
            args=(*self.maps(problem, config), "out", "lse", *sizes),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "DIM": problem.head_dim,
                "HEADS": problem.heads,
                "GROUP": problem.heads // problem.kv_heads,
                "CAUSAL": problem.causal,
                "SOFTCAP": problem.softcap,
                "WINDOW": int(problem.span) - 1,
                "WARPGROUPS": config["warpgroups"],
                "KEYS": config["keys"],
                "STAGES": config["stages"],
                "IN_TURN": config["in_turn"],
            },
            options={"block": (config["warpgroups"] + 1) * _WARPGROUP},
            shared_bytes=_shared_bytes(_parts(problem), config),
        )


def source_of(sequences: str) -> str:
    """The kernel's text for ``batch`` or ``packed`` sequences, without the products."""
    return "\n".join(
        (
            read_source("registry_cuda.kernels", "tensor_map.cuh", "tensor_core.cuh", "warpgroup.cuh"),
            read_source("registry_cuda.attention.kernels", "head_tiles.cuh", "sequence.cuh", f"{sequences}.cuh"),
            read_source("registry_cuda.attention.kernels", "forward.cuh", f"{sequences}.cu"),
        )
    )


def rows_of(config: Config) -> int:
    """Queries of a tile."""
    return int(config["warpgroups"] * WARPGROUP_ROWS)


def logit_arguments(problem: Problem) -> tuple[str | float, str | float]:
    """Scale and soft cap as arguments of a launch: names of the call's own, or numbers where it has none."""
    arguments = problem.traits.arguments
    given = arguments is not None and arguments["scale"] is not None
    scale: str | float = "scale" if given else float(problem.head_dim) ** -0.5
    return scale, "softcap" if problem.softcap else 1.0


def together(problem: Problem, heads: int, keys: int) -> int:
    """Heads of ``heads`` that run at once: as many as have ``keys`` keys and values each in L2, at least one group."""
    each = 4 * keys * problem.head_dim
    return int(min(heads, max(1, _KEPT_BYTES // each) * (problem.heads // problem.kv_heads)))


def counting_reasons(tiles: int, queries: int, keys: int) -> Iterator[str]:
    """Why sizes are too large for a kernel that counts in 32 bits."""
    if max(tiles, queries + keys) > _MOST_COUNTED:
        yield f"{tiles} tiles of {queries} queries and {keys} keys are beyond what is counted in 32 bits"


def _form_reasons(problem: Problem) -> Iterator[str]:
    """Why the kernel does not take the form of a problem."""
    if problem.head_dim > _MOST_DIM or problem.head_dim * 2 % VECTOR:
        yield f"head_dim={problem.head_dim} is no multiple of {VECTOR // 2} up to {_MOST_DIM}"
    arguments = problem.traits.arguments
    scale = None if arguments is None else arguments["scale"]
    if isinstance(scale, float) and scale < _LEAST_SCALE:
        yield f"scale={scale} (at least {_LEAST_SCALE}: the largest logit of a row is that of its largest product)"


def _parts(problem: Problem) -> int:
    return -(-int(problem.head_dim) // _PART)


@lru_cache(maxsize=64)
def kernel(source: str, function: str, dtype: str, keys: int, parts: int) -> CudaKernel:
    """The kernel for blocks of so many keys and heads of ``parts`` times 64: PTX names each register of a product."""
    products = _product("multiply_keys", keys, dtype, "unsigned long long a", ['"l"(a)'], "0, 0")
    words = [f'"r"(a[{place}])' for place in range(4)]
    values = _product("multiply_values", parts * _PART, dtype, "const unsigned (&a)[4]", words, "1")
    return CudaKernel(f"{products}\n{values}\n{source}", function)


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
def _space(parts: int, softcap: bool, device: Device) -> Space:
    """A space for all sizes: what is compiled for one serves all."""
    limit = shared_limit(device.target)
    return (
        Space(warpgroups=[1, 2, 3], keys=list(_KEYS), stages=[2, 3, 4, 5, 6, 8], in_turn=[True, False])
        .require("sums, scores and weights fit in registers", lambda config: _registers_suffice(parts, softcap, config))
        .require("tiles fit in shared memory", lambda config: _shared_bytes(parts, config) <= limit)
        .require("half of it is used", lambda config: _fills(parts, config, limit))
        .require("one warpgroup has no turns", lambda config: config["warpgroups"] > 1 or not config["in_turn"])
    )


def _registers_suffice(parts: int, softcap: bool, config: Config) -> bool:
    """Whether a thread has room for sums, scores, and weights, which are two in a register."""
    live = parts * _PART // 2 + config["keys"] // 2 + config["keys"] // 4
    return bool(live + _OTHER_REGISTERS[softcap] <= _REGISTERS[config["warpgroups"]])


def _fills(parts: int, config: Config, limit: int) -> bool:
    return bool(config["stages"] == 8 or 2 * _shared_bytes(parts, config) >= limit)


def _shared_bytes(parts: int, config: Config) -> int:
    """Barriers, queries, stages, and as much as aligns them."""
    rows = config["warpgroups"] * WARPGROUP_ROWS + config["stages"] * config["keys"]
    return int(2 * _PATTERN + rows * parts * WIDTH)


def _nearest(space: Space, wanted: Mapping[str, int], most_keys: int) -> Config:
    """The configuration of ``space`` nearest to ``wanted``, with blocks of ``most_keys`` or fewer."""

    def distance(config: Config) -> tuple[int, ...]:
        return (
            abs(config["warpgroups"] - wanted["warpgroups"]), max(0, config["keys"] - most_keys),
            abs(config["keys"] - wanted["keys"]), not config["in_turn"], abs(config["stages"] - wanted["stages"]),
        )  # fmt: skip

    return min(space.configs, key=distance)
