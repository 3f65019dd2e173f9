"""What caches in rows or in pages have in common: lengths, tables of pages, and the checks of both."""

from __future__ import annotations

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
from ..checks import check_values, shape_text

_MOST_KEYS = 2**31 - 1


def cache_room(arguments: Arguments, batch: int, name: str, slot: str) -> tuple[int | bool, int]:
    """Slots of a page, False for a cache without, and the most keys that a sequence can have.

    ``name`` is the cache's argument, ``slot`` the dimensions of a slot in messages. Raises InvalidArgumentError for
    lengths or a table of another dtype or shape, and for room that no int32 counts.
    """
    op, cache, table = arguments.op, arguments.tensor(name), arguments.optional_tensor("block_table")
    _check_integers(op, "kv_lens", arguments.tensor("kv_lens"), (batch,), "[batch]")
    if table is not None:
        _check_integers(op, "block_table", table, (batch, *table.shape[1:2]), "[batch, max_blocks]")
        return cache.shape[1], _counted(op, "block_table", table.shape[1] * cache.shape[1])
    if cache.shape[0] != batch:
        raise InvalidArgumentError(
            f"{op}: {name} is {shape_text(cache.shape)} but q has {batch} sequences",
            hint=f"without a block_table the cache is [batch, kv_len, {slot}]",
        )
    return False, _counted(op, name, cache.shape[1])


def _counted(op: str, name: str, room: int) -> int:
    if room > _MOST_KEYS:
        raise InvalidArgumentError(
            f"{op}: {name} has room for {room} keys of a sequence", hint=f"lengths are int32: at most {_MOST_KEYS} keys"
        )
    return room


def _check_integers(op: str, name: str, spec: TensorSpec, shape: tuple[int, ...], shown: str) -> None:
    if spec.dtype != torch.int32:
        raise InvalidArgumentError(
            f"{op}: {name} is {dtype_name(spec.dtype)}, expected int32", hint=f"convert it: {name}.to(torch.int32)"
        )
    if spec.shape != shape or len(shape) != shown.count(",") + 1:
        raise InvalidArgumentError(
            f"{op}: {name} has shape {shape_text(spec.shape)}", hint=f"expected {shown}, batch={shape[0]}"
        )


def check_page(problem: Problem) -> None:
    """Raise InvalidArgumentError unless the dimension ``page`` is False or divides ``kv_len``."""
    page = problem.page
    if not is_size_or_false(page) or (page and problem.kv_len % page):
        raise InvalidArgumentError(
            f"{problem.op}: page={page!r} and kv_len={problem.kv_len}",
            hint="expected the slots of a page, of which kv_len is a multiple, or False: a cache without pages",
        )


def is_size_or_false(value: Value) -> bool:
    """Whether a dimension is a positive integer, or False."""
    return value is False or (type(value) is int and value > 0)


def check_places(op: str, cache: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor | None) -> None:
    """Raise OutOfRangeError for a length beyond the room of its sequence, and for a page that the cache lacks.

    Entries of the table behind the last page that a sequence has begun are not read, and may be anything.
    """
    size = cache.shape[1]
    room = size if table is None else size * table.shape[1]
    told = f"{room} keys" if table is None else f"{table.shape[1]} pages of {size}"
    check_values(
        op,
        "kv_lens",
        lengths,
        (lengths < 0) | (lengths > room),
        f"0 to {room}, the room of a sequence ({told})",
        "a length counts the new tokens, too: append their keys and values to the cache first",
    )
    if table is None:
        return
    begun = torch.arange(table.shape[1], device=table.device) * size < lengths[:, None]
    check_values(
        op,
        "block_table",
        table,
        begun & ((table < 0) | (table >= cache.shape[0])),
        f"0 to {cache.shape[0] - 1}, a page of the cache",
        "each page that a sequence of kv_lens tokens has begun needs its number in the table",
    )
