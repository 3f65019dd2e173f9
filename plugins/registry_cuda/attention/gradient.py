"""Attention's gradients by wgmma: those of keys and values, then of queries, by held tiles and streamed blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaKernel, read_source, shared_limit

from ..hopper import hopper_reasons
from ..number import C_TYPES
from ..tensor_map import WIDTH, TensorMapImplementation, tensor_map
from .head_tiles import VECTOR, HeadTiles, tile_reasons
from .wgmma import WARPGROUP_ROWS, kernel

_TENSORS = ("q", "k", "v", "grad_out", "out")
_PART = 64
"""Elements of a head in a row of 128 bytes."""
_MOST_DIM = 256
_MOST_PARTS = 2
"""Of a head of which a pass makes two gradients: two sums of longer ones leave no registers for scores."""
_MOST_COUNTED = 2**30 - 2**12
"""Queries and keys, and tiles: a window of up to 2**30 keys is added to the place of one in 32 bits."""
_WARPGROUP = 128
_PATTERN = 1024
_REGISTERS = {1: 224, 2: 240, 3: 160}
"""Of a thread of so many warpgroups that multiply; of one alone ptxas spills some of 255."""
_REGISTERS_OF_ROW = {False: 1.25, True: 1.45}
"""Of a thread for each streamed row, without and with a soft cap: half of a score, half of its change, and a weight."""
_OTHER_REGISTERS = {False: 28, True: 40}
"""Of a thread beside sums, scores, their changes and weights, without and with a soft cap."""
LEAST_ROWS = 32
"""Rows of the smallest block."""
_BLOCKS = (LEAST_ROWS, 48, 64, 80, 96, 112, 128, 144)
_MOST_STAGES = 4
_DEFAULTS = {1: ((2, 96), (2, 128)), 2: ((2, 64), (2, 96)), 3: ((2, 80), (2, 80)), 4: ((2, 48), (2, 48))}
"""By parts of a head: warpgroups and rows of a block that streams, by keys and by queries."""
_TERM_THREADS = 256
_KEPT = 1024


class Pass(NamedTuple):
    """A pass over tiles of held rows: which, by how many warpgroups, and the rows of a block that streams by.

    ``first`` and ``second``: whether the gradients of the first and of the second held tensors are made.
    """

    by_keys: bool
    warpgroups: int
    block: int
    first: bool = True
    second: bool = True

    @property
    def rows(self) -> int:
        """Rows of a held tile."""
        return self.warpgroups * WARPGROUP_ROWS

    @property
    def held(self) -> tuple[str, str]:
        """The tensors of held tiles."""
        return _KEYS if self.by_keys else _QUERIES

    @property
    def streamed(self) -> tuple[str, str]:
        """The tensors of streamed blocks."""
        return _QUERIES if self.by_keys else _KEYS


_KEYS, _QUERIES = ("k", "v"), ("q", "grad_out")


class WgmmaBackward(TensorMapImplementation):
    """Base of attention's gradients by wgmma: warpgroups multiply, one thread has tiles copied, nothing is atomic.

    A pass holds tiles of keys and values, while queries and gradients of outputs stream; the next one holds the
    latter, while keys and values stream. Keys and values of long heads have a pass each. A warpgroup has 64 held
    rows. What all passes need of a row of queries is computed before.

    key_warpgroups    that hold keys and values
    queries           of a block that streams by them
    query_warpgroups  that hold queries and gradients of outputs
    keys              of a block that streams by them
    """

    name = "cuda.wgmma"
    function: str
    """The kernel's name in ``passes``."""
    passes: str
    """The kernel's text, without the products."""
    terms: CudaKernel
    """The kernel of the rows' terms."""

    @abstractmethod
    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensor ``q``, ``k``, ``v``, ``grad_out`` or ``out`` in tiles of so many rows; None if elements are apart."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from hopper_reasons(device)
        if problem.dtype not in ("bfloat16", "float16"):
            yield f"dtype is {problem.dtype}, expected bfloat16 or float16"
            return
        if problem.head_dim > _MOST_DIM or problem.head_dim * 2 % VECTOR:
            yield f"head_dim={problem.head_dim} is no multiple of {VECTOR // 2} up to {_MOST_DIM}"
        yield from tile_reasons(problem, {name: self.tiles(problem, name, 1) for name in _TENSORS})
        if not problem.traits.contiguous("lse"):
            yield "lse is not contiguous"

    def space(self, problem: Problem, device: Device) -> Space:
        """Warpgroups of both passes, and the rows of their blocks."""
        return _space(parts_of(problem), problem.softcap, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The largest blocks of two warpgroups that fit in registers; not measured."""
        (key_warpgroups, queries), (query_warpgroups, keys) = _DEFAULTS[parts_of(problem)]
        wanted = {
            "key_warpgroups": key_warpgroups, "queries": queries, "query_warpgroups": query_warpgroups, "keys": keys,
        }  # fmt: skip
        return _nearest(self.space(problem, device), tuple(wanted.items()))

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 1.6 to 4.3 times as fast as FlashAttention 2 and Triton's; short sequences leave rows empty."""
        return 1.6 if max(self.lengths(problem)) >= WARPGROUP_ROWS else 0.7

    @abstractmethod
    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of a sequence, in the mean."""

    def outputs(self, problem: Problem) -> list[HeadTiles]:
        """The rows of ``grad_out`` and of ``out``, whose strides are known to be readable."""
        found = [self.tiles(problem, name, 1) for name in ("grad_out", "out")]
        return [tiles for tiles in found if tiles is not None]

    def pass_launch(
        self, problem: Problem, one: Pass, device: Device, tiles: int, sizes: tuple[str | float, ...]
    ) -> Launch:
        """The launch of a pass over ``tiles`` tiles of all heads.

        ``sizes`` are its arguments behind the terms: offsets, if the op has them, scale, soft cap, and numbers.
        """
        maps: tuple[str | int, ...] = ()
        for name, height in (*((each, one.rows) for each in one.held), *((each, one.block) for each in one.streamed)):
            found = self.tiles(problem, name, height)
            assert found is not None
            maps += tensor_map(name, found)
        gradients = ("grad_k", "grad_v") if one.by_keys else ("grad_q", "grad_q")
        return Launch(
            kernel(self.passes, self.function, problem.dtype, one.block, parts_of(problem)),
            grid=(max(1, min(tiles, device.multiprocessors)),),
            args=(*maps, *gradients, "terms", *sizes),
            constants=_constants(problem, one, device),
            options={"block": (one.warpgroups + 1) * _WARPGROUP},
            shared_bytes=shared_bytes(parts_of(problem), one, _stages(parts_of(problem), one, device)),
        )

    def terms_launch(self, problem: Problem, config: Config, rows: int, sizes: tuple[str | int, ...]) -> Launch:
        """The launch that makes the terms of ``rows`` rows of blocks; ``sizes`` are its arguments behind ``lse``."""
        lanes = _lanes(problem.head_dim * 2 // VECTOR)
        return Launch(
            self.terms,
            grid=(max(1, -(-rows * lanes // _TERM_THREADS)),),
            args=("terms", "grad_out", "out", "lse", *sizes),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "DIM": problem.head_dim,
                "LANES": lanes,
                "HEADS": problem.heads,
                "QUERIES": config["queries"],
                "THREADS": _TERM_THREADS,
            },
            options={"block": _TERM_THREADS},
        )


def passes_source(sequences: str) -> str:
    """The kernel's text of a pass for ``batch`` or ``packed`` sequences, without the products."""
    blocks = ("packed_blocks.cuh",) if sequences == "packed" else ()
    return "\n".join(
        (
            read_source("registry_cuda.kernels", "tensor_map.cuh", "tensor_core.cuh", "warpgroup.cuh"),
            read_source(
                "registry_cuda.attention.kernels", "head_tiles.cuh", "gradient.cuh", *blocks,
                f"gradient_{sequences}.cuh", "held.cuh", "slopes.cuh", f"gradient_{sequences}.cu",
            ),
        )
    )  # fmt: skip


def terms_source(sequences: str) -> str:
    """The text of the kernel of the rows' terms for ``batch`` or ``packed`` sequences."""
    blocks = ("packed_blocks.cuh",) if sequences == "packed" else ()
    return read_source("registry_cuda.attention.kernels", "row_terms.cuh", *blocks, f"{sequences}_terms.cu")


def passes_of(problem: Problem, config: Config) -> Sequence[Pass]:
    """The passes whose gradients are needed: of keys and values of long heads one each."""
    of_k, of_v = needed(problem, "k"), needed(problem, "v")
    pairs = [(of_k, of_v)] if parts_of(problem) <= _MOST_PARTS else [(of_k, False), (False, of_v)]
    form = config["key_warpgroups"], config["queries"]
    passes = [Pass(True, *form, *pair) for pair in pairs if any(pair)]
    if needed(problem, "q"):
        passes.append(Pass(False, config["query_warpgroups"], config["keys"], second=False))
    return passes


def needed(problem: Problem, name: str) -> bool:
    """Whether the gradient of a tensor is needed; True where only dimensions are known."""
    arguments = problem.traits.arguments
    return arguments is None or arguments.flag(f"need_{name}")


def parts_of(problem: Problem) -> int:
    """Parts of 64 elements of a head."""
    return -(-int(problem.head_dim) // _PART)


def counting_reasons(tiles: int, queries: int, keys: int) -> Iterator[str]:
    """Why sizes are too large for kernels that count in 32 bits."""
    if max(tiles, queries + keys) > _MOST_COUNTED:
        yield f"{tiles} tiles of {queries} queries and {keys} keys are beyond what is counted in 32 bits"


def shared_bytes(parts: int, one: Pass, stages: int) -> int:
    """Barriers, held tiles, stages with their terms, and as much as aligns them."""
    terms = 8 * one.block if one.by_keys else 0
    return 2 * _PATTERN + 2 * one.rows * parts * WIDTH + stages * (2 * one.block * parts * WIDTH + terms)


def _constants(problem: Problem, one: Pass, device: Device) -> dict[str, int | str | bool]:
    """The constants of a pass, without those of the other."""
    window = int(problem.span) - 1
    ahead = 0 if problem.causal else window
    return {
        "ELEMENT": C_TYPES[problem.dtype],
        "DIM": problem.head_dim,
        "HEADS": problem.heads,
        "GROUP": problem.heads // problem.kv_heads,
        "SOFTCAP": problem.softcap,
        "BY_KEYS": one.by_keys,
        "BEFORE": ahead if one.by_keys else window,
        "AFTER": window if one.by_keys else ahead,
        "WARPGROUPS": one.warpgroups,
        "BLOCK": one.block,
        "STAGES": _stages(parts_of(problem), one, device),
        "NEED_FIRST": one.first,
        "NEED_SECOND": one.second,
    }


def _lanes(vectors: int) -> int:
    """Lanes of a row of so many vectors, a power of two."""
    return 1 << (vectors - 1).bit_length()


def _stages(parts: int, one: Pass, device: Device) -> int:
    """Stages that fit in shared memory, up to as many as are of use."""
    limit = shared_limit(device.target)
    return max((count for count in range(1, _MOST_STAGES + 1) if shared_bytes(parts, one, count) <= limit), default=0)


@lru_cache(maxsize=_KEPT)
def _space(parts: int, softcap: bool, device: Device) -> Space:
    """A space for all sizes: what is compiled for one serves all."""
    by_keys, by_queries = _forms(True, parts, softcap, device), _forms(False, parts, softcap, device)
    return (
        Space(
            key_warpgroups=[1, 2, 3], queries=list(_BLOCKS), query_warpgroups=[1, 2, 3], keys=list(_BLOCKS),
        )
        .require("a pass by keys fits", lambda config: (config["key_warpgroups"], config["queries"]) in by_keys)
        .require("a pass by queries fits", lambda config: (config["query_warpgroups"], config["keys"]) in by_queries)
    )  # fmt: skip


def _forms(by_keys: bool, parts: int, softcap: bool, device: Device) -> frozenset[tuple[int, int]]:
    """Warpgroups and rows of a block of passes that fit in registers and shared memory, the largest blocks of each."""
    found = set()
    for warpgroups, registers in _REGISTERS.items():
        fit = [block for block in _BLOCKS if _registers(by_keys, parts, softcap, block) <= registers]
        fit = [block for block in fit if _stages(parts, Pass(by_keys, warpgroups, block), device) > 1]
        found |= {(warpgroups, block) for block in fit[-3:]}
    return frozenset(found)


def _registers(by_keys: bool, parts: int, softcap: bool, block: int) -> float:
    """Registers of a thread: one sum or two, scores, changes and weights of a block, and the rest."""
    sums = parts * _PART // 2 * (2 if by_keys and parts <= _MOST_PARTS else 1)
    return sums + _REGISTERS_OF_ROW[softcap] * block + _OTHER_REGISTERS[softcap]


@lru_cache(maxsize=_KEPT)
def _nearest(space: Space, wanted: tuple[tuple[str, int], ...]) -> Config:
    """The configuration of ``space`` nearest to ``wanted``, warpgroups first."""

    def distance(config: Config) -> tuple[int, ...]:
        apart = [abs(config[name] - value) for name, value in wanted]
        return apart[0] + apart[2], apart[1] + apart[3]

    return min(space.configs, key=distance)
