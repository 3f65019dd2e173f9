"""attention_decode in two forms: a sequence a program, and its keys split over programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, fits_registers, fits_shared, next_power_of_2
from registry.backends.head_strides import outer_strides
from registry.backends.triton import INTERPRETED, TritonImplementation

from ..decoder.heads import type_reasons
from ..quantize import float8_reasons
from ..support import KEPT, options
from .kernels import decode as kernels

MOST_DIM = 512
"""The longest head: a block of 16 keys and one of values, of float32, are 64 KiB."""
MOST_ROWS = 64
"""The most rows of queries of a program; more are several programs that read the same keys."""
MOST_PARTS = 128
"""The most parts of a sequence."""
LEAST_KEYS = 64
"""The least keys of a part."""

_STEP, _LONG_STEP = 16384, 32768
"""Bytes of keys of a usual step: on an H200 one of 32 KiB is faster where it takes few registers."""
_LONG_PART = 512

_ARGUMENTS = ("q", "k_cache", "v_cache", "kv_lens", "block_table", "k_scale")
_COMBINE_WARPS = 4
_COMBINED_ELEMENTS = 8192
"""Elements of parts that a step of the second launch takes: 64 a thread, all on the way at once."""
_BLOCKS, _WARPS = (16, 32, 64, 128), (2, 4, 8)


class _Decode(TritonImplementation):
    """All heads of a group and their tokens are the rows of one tile, so that no key is read twice."""

    op = "attention_decode"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        yield from float8_reasons(problem.kv_dtype, device)
        for name in ("q", "k_cache", "v_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a head of {name} are not neighbours"
        if not problem.traits.contiguous("kv_lens"):
            yield "kv_lens is not contiguous"
        if problem.page and _table_row(problem) is None:
            yield "the pages of a sequence are not neighbours in block_table"
        if problem.head_dim > MOST_DIM:
            yield f"heads of {problem.head_dim} elements (limit {MOST_DIM})"
        elif self.space(problem, device).is_empty:
            yield f"heads of {problem.head_dim} elements: {self.space(problem, device).why_empty()}"

    def constants(self, problem: Problem) -> dict[str, Any]:
        """What every kernel is compiled for."""
        return {
            "KV_HEADS": problem.kv_heads,
            "GROUP": problem.heads // problem.kv_heads,
            "TOKENS": problem.q_len,
            "DIM": problem.head_dim,
            "SPAN": _span(problem.head_dim),
            "WINDOW": int(problem.span) - 1,
        }

    def of_walk(self, problem: Problem, config: Config) -> dict[str, Any]:
        """What the kernels that read keys are compiled for."""
        return {
            **self.constants(problem),
            "PAGE": int(problem.page),
            "SOFTCAP": problem.softcap,
            # the interpreter's own conversion makes a number of NaN
            "FLOAT8": "" if problem.kv_dtype == "auto" else "bits" if INTERPRETED else "ptx",
            "ROWS": _rows(problem),
            "BLOCK": config["BLOCK"],
        }


class WholeDecode(_Decode):
    """A program walks all keys of a sequence and a head: nothing is combined; for many sequences."""

    name = "triton.whole"

    def space(self, problem: Problem, device: Device) -> Space:
        """Keys a step, warps, and steps that are loaded ahead."""
        return _walk_space(_Tile.of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 16 KiB of keys a step, 32 KiB without pages."""
        return _usual(_Tile.of(problem), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Where sequences and heads keep every SM busy with two programs."""
        return 2.0 if _groups(problem) >= 2 * device.multiprocessors else 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            kernels.whole_decode,
            grid=(_groups(problem),),
            args=("out", "lse", *_ARGUMENTS, "v_scale", "scale", "softcap", *_all_strides(problem)),
            constants=self.of_walk(problem, config),
            options=options(config),
        )


class SplitKvDecode(_Decode):
    """A sequence's keys over several programs, and a second launch that combines their fp32 partial results.

    From Hopper on the second is launched while the first runs, and waits on the device. Each sequence is split by its
    own length, which the host does not read: a part has at least ``keys`` keys, and programs without a part end.
    Source: Dao, Haziza, Massa, Sizov, "Flash-Decoding for long-context inference" (2023).
    """

    name = "triton.split_kv"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.kv_len <= LEAST_KEYS:
            yield f"{problem.kv_len} keys are too few to split (from {LEAST_KEYS + 1})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Least keys a part, keys a step, warps, and steps that are loaded ahead."""
        return _split_space(_most_keys(problem), _Tile.of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About two programs an SM, if sequences fill their room."""
        parts = max(1.0, 2 * device.multiprocessors / max(_groups(problem), 1))
        keys = 1 << max(0, round(math.log2(max(problem.kv_len, 1) / parts)))
        return _nearest_split(_most_keys(problem), min(keys, 2048), _Tile.of(problem), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a sequence a program where these leave SMs without work."""
        return 1.5

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        parts = (problem.batch * problem.heads * problem.q_len, _splits(problem, config))
        return {
            "parts": TensorSpec.contiguous((*parts, _span(problem.head_dim)), torch.float32),
            **{name: TensorSpec.contiguous(parts, torch.float32) for name in ("tops", "totals")},
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        splits, partial = _splits(problem, config), ("parts", "tops", "totals")
        numbers, dependent = (splits, config["keys"]), _launches_dependents(device)
        combined = min(MOST_PARTS, max(16, _COMBINED_ELEMENTS // _span(problem.head_dim)))
        return [
            Launch(
                kernels.partial_decode,
                grid=(_groups(problem) * splits,),
                args=(*partial, *_ARGUMENTS, "scale", "softcap", *_all_strides(problem), *numbers),
                constants={**self.of_walk(problem, config), "DEPENDENT": dependent},
                options=options(config),
            ),
            Launch(
                kernels.combine_decode,
                grid=(problem.batch * problem.heads * problem.q_len,),
                args=("out", "lse", *partial, "kv_lens", "v_scale", *numbers),
                constants={**self.constants(problem), "PARTS": combined, "DEPENDENT": dependent},
                options={"num_warps": _COMBINE_WARPS, **({"launch_pdl": True} if dependent else {})},
            ),
        ]


def _launches_dependents(device: Device) -> bool:
    """Whether a launch may begin before the one before it has ended: programmatic dependent launch."""
    return device.type == "cuda" and not INTERPRETED and device.capability >= (9, 0)


def _span(head_dim: int) -> int:
    """Elements of a head with padding: tensor cores take 16 at least."""
    return max(16, next_power_of_2(head_dim))


def _rows(problem: Problem) -> int:
    """Rows of a tile of queries: tensor cores take 16 at least."""
    return min(MOST_ROWS, max(16, next_power_of_2(_rows_of_group(problem))))


def _rows_of_group(problem: Problem) -> int:
    """Rows of queries that share a head of keys: heads of the group, times tokens."""
    return int(problem.heads) // int(problem.kv_heads) * int(problem.q_len)


def _groups(problem: Problem) -> int:
    """Programs that a sequence is not split over: of sequences, heads of keys, and tiles of queries."""
    tiles = -(-_rows_of_group(problem) // _rows(problem))
    return int(problem.batch * problem.kv_heads * tiles)


def _splits(problem: Problem, config: Config) -> int:
    """Parts of a sequence that fills its room."""
    return max(1, min(MOST_PARTS, -(-int(problem.kv_len) // int(config["keys"]))))


def _most_keys(problem: Problem) -> int:
    """The most keys that a part may have at least: of a whole sequence half, rounded up to a power of two."""
    return min(2048, max(LEAST_KEYS, next_power_of_2(problem.kv_len) // 2))


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    if name == "q":
        return outer_strides(problem, name, (problem.q_len, problem.heads, problem.head_dim))
    return outer_strides(problem, name, (problem.page or problem.kv_len, problem.kv_heads, problem.head_dim))


def _table_row(problem: Problem) -> int | None:
    """Elements of the table from a sequence to the next; 0 without a table, None unless a row's are neighbours."""
    if not problem.page:
        return 0
    columns = problem.kv_len // problem.page
    found = outer_strides(problem, "block_table", (columns,))
    return None if found is None else found[0]


def _all_strides(problem: Problem) -> tuple[int, ...]:
    """The strides that the kernels take, in their order."""
    each = [stride for name in ("q", "k_cache", "v_cache") for stride in _strides(problem, name) or ()]
    return (*each, _table_row(problem) or 0)


class _Tile(NamedTuple):
    """Sizes of a step: elements of a head with padding, rows of queries, bytes of their elements and of a key's."""

    span: int
    rows: int
    size: int
    cell: int
    paged: bool

    @classmethod
    def of(cls, problem: Problem) -> _Tile:
        """The sizes of a problem's steps."""
        size = problem.torch_dtype.itemsize
        cell = 1 if problem.kv_dtype != "auto" else size
        return cls(_span(problem.head_dim), _rows(problem), size, cell, bool(problem.page))

    @property
    def stages(self) -> tuple[int, ...]:
        """Domain of num_stages: one, two or three steps on the way; a look into the table takes a stage of its own."""
        return (3, 5, 7) if self.paged else (2, 3, 4)

    def step_bytes(self, config: Config) -> int:
        """Bytes of a step's keys; float8 is multiplied with float32 as that."""
        return int(config["BLOCK"]) * self.span * (4 if self.size == 4 else self.cell)

    def shared_bytes(self, config: Config, device: Device) -> int:
        """Bytes of shared memory: steps that are loaded ahead, with pages each after a look into the table, and copies.

        Converted values are written back in rows; for float32 converted keys, too. Hopper's products of 64 rows take
        both from a step that no load is writing to.
        """
        ahead = (config["num_stages"] - 1) // (2 if self.paged else 1)
        block = config["BLOCK"] * self.span
        both = self.rows >= 64 and config["num_warps"] >= 4 and device.capability >= (9, 0)
        converted = self.cell < self.size
        copies = 2 if both or (converted and self.size == 4) else int(converted)
        shared = block * (2 * self.cell * ahead + copies * self.size)
        return int(shared + self.rows * (self.span + config["BLOCK"]) * self.size + 2048)

    def elements(self, config: Config, device: Device) -> float:
        """Elements of keys that a thread has in a step."""
        return elements_per_thread(config["BLOCK"] * self.span, config["num_warps"], device)


@lru_cache(maxsize=KEPT)
def _walk_space(tile: _Tile, device: Device) -> Space:
    """Keys a step, warps, and steps that are loaded ahead."""
    return _fitting(Space(BLOCK=_BLOCKS, num_warps=_WARPS, num_stages=tile.stages), tile, device)


@lru_cache(maxsize=KEPT)
def _split_space(most: int, tile: _Tile, device: Device) -> Space:
    """Keys a step, warps, steps that are loaded ahead, and the least keys of a part, up to ``most``."""
    keys = [count for count in (64, 128, 256, 512, 1024, 2048) if count <= most]
    blocks = [count for count in _BLOCKS if count <= most]
    space = Space(keys=keys, BLOCK=blocks, num_warps=_WARPS, num_stages=tile.stages)
    return _fitting(space, tile, device).require(
        "a part has a step of keys", lambda config: config["BLOCK"] <= config["keys"]
    )


def _fitting(space: Space, tile: _Tile, device: Device) -> Space:
    """The configurations whose blocks fit in shared memory and registers, and are worth a step."""

    longest = max(space.domains["BLOCK"])

    def registers(config: Config) -> bool:
        live = tile.rows * (tile.span + 2 * config["BLOCK"])
        return fits_registers(live, config["num_warps"], device, 0.75)

    def shares(config: Config) -> bool:
        # float32 is multiplied from registers, without tensor cores
        most = 16 if tile.size == 4 else 128
        each = tile.elements(config, device)
        return (each >= 16 or config["num_warps"] == _WARPS[0]) and (
            each <= most or config["BLOCK"] == _BLOCKS[0] or config["num_warps"] == _WARPS[-1]
        )

    def worth(config: Config) -> bool:
        step = tile.step_bytes(config)
        return 8192 <= step <= 32768 or bool(config["BLOCK"] == (longest if step < 8192 else _BLOCKS[0]))

    return (
        space.require(
            "blocks fit in shared memory", lambda config: fits_shared(tile.shared_bytes(config, device), device)
        )
        .require("results fit in registers", registers)
        .require("16 to 128 elements a thread, as the dtypes allow", shares)
        .require("8 to 32 KiB of keys a step", worth)
    )


@lru_cache(maxsize=KEPT)
def _usual(tile: _Tile, device: Device) -> Config:
    space = _walk_space(tile, device)
    return min(space.configs, key=lambda config: _unusual(config, tile, _LONG_STEP, tile.stages[1]))


@lru_cache(maxsize=KEPT)
def _nearest_split(most: int, keys: int, tile: _Tile, device: Device) -> Config:
    # many programs of short parts, or fewer that have more on the way
    step, stages = (_STEP, tile.stages[1]) if keys < _LONG_PART else (_LONG_STEP, tile.stages[-1])
    stages = tile.stages[1] if tile.paged or tile.cell == 1 else stages

    def distance(config: Config) -> tuple[float, ...]:
        return abs(config["keys"] - keys), *_unusual(config, tile, step, stages)

    return min(_split_space(most, tile, device).configs, key=distance)


def _unusual(config: Config, tile: _Tile, step: int, stages: int) -> tuple[float, ...]:
    """The distance from ``stages`` and steps of ``step`` bytes of keys, 4 warps.

    With pages, and for 64 rows or of float32, a step is 16 KiB: more registers hold addresses, or results.
    """
    step = _STEP if tile.paged or tile.rows > 16 or tile.size == 4 else step
    away = abs(tile.step_bytes(config).bit_length() - step.bit_length())
    return away, abs(config["num_warps"] - 4), abs(config["num_stages"] - stages)
