"""Rotations of queries and keys that wait for the cache: rotary_kv_append then does both in one launch.

Attention of transformers' models rotates queries and keys, appends keys and values to a cache, and attends, one after
the other. Over a static cache the rotation returns what it got, the append, which gets keys, runs the op, and attention
takes the rotated queries of it. The tokens of all layers' caches are counted at the end of the model, together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from transformers.cache_utils import StaticLayer

from ....api import call
from ....errors import OutOfRangeError, RegistryError
from ....tracing import refuse

QkRotation = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class CacheAppends(threading.local):
    """What this thread's forward of a model knows.

    ``step``: of the attention that runs; ``tables``: (cosines, sines, table [batch, seq, head_dim]) of rotary modules,
    None outside of a model's forward; ``counts``: lengths of caches that are to be raised, with the numbers of new
    tokens, None outside; ``traced``: torch.compile traces the model, so that layers which are compiled alone know
    nothing of it.
    """

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees these attributes come into being
        self.step: AppendStep | AppendProbe | None = None
        self.tables: list[tuple[torch.Tensor, ...]] | None = None
        self.counts: list[tuple[torch.Tensor, int]] | None = None
        self.traced = False

    @property
    def active(self) -> bool:
        """Whether this is a part of a model's forward, traced or not as the whole is."""
        return self.tables is not None and self.traced is is_dynamo_compiling()

    def begin(self) -> None:
        """A model's forward begins."""
        self.tables, self.counts, self.traced = [*(self.tables or ())], [], is_dynamo_compiling()

    def awaits(self, length: torch.Tensor) -> bool:
        """True if ``length``, of a cache, is to be raised by ``settle``."""
        return any(length is waiting for waiting, _ in self.counts or ())

    def settle(self) -> None:
        """Raise the lengths of caches that are to be raised."""
        counts, self.counts = self.counts, []
        while counts:
            new = counts[0][1]
            torch._foreach_add_([length for length, count in counts if count == new], new)
            counts = [(length, count) for length, count in counts if count != new]

    def table_of(self, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor | None:
        """The op's table for cosines and sines, if a rotary module of the model has made these."""
        for known in self.tables or ():
            if known[0] is cos and known[1] is sin:
                return known[2]
        return None


class AppendStep:
    """One attention's rotation, append and query; in the place of its cache, with keys of ``dtype``."""

    def __init__(self, cache: Any, dtype: torch.dtype) -> None:
        self._cache, self._dtype = cache, dtype
        self._waiting: tuple[Any, ...] | None = None
        self._query: torch.Tensor | None = None
        self._rotated: torch.Tensor | None = None
        self.lengths: torch.Tensor | None = None
        """Tokens of each sequence, int32 [batch], once the new ones are appended; None if a mask says else."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def rotate(
        self, own: QkRotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys as they are, if the append can rotate them; else rotated by ``own``."""
        table = APPENDS.table_of(cos, sin)
        alike = q.dtype is k.dtype is cos.dtype is self._dtype and q.shape[-1] == cos.shape[-1]
        if table is None or self._waiting is not None or not alike or q.shape[2] != cos.shape[1] or _learns(q, k):
            return own(q, k, cos, sin)
        self._waiting, self._query = (own, q, k, cos, sin, table), q
        return q, k

    def update(self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The cache's ``update``, with rotated keys."""
        # attention of layers that run several times may append to another layer of the cache each time
        held = filled_layer(self._cache, args[0] if args else kwargs.get("layer_idx"))
        again = held is not None and APPENDS.awaits(held.cumulative_length)
        if again:
            APPENDS.settle()
        if self._waiting is None:
            return self._cache.update(key, value, *args, **kwargs)
        own, q, k, cos, sin, table = self._waiting
        if key is not k:
            _refuse()
        if held is None or _learns(value) or not _fits(held, key, value):
            self._rotated, key = own(q, k, cos, sin)
            return self._cache.update(key, value, *args, **kwargs)
        _check_room(held, key.shape[2])
        given = (x.transpose(1, 2) for x in (q, key, value))
        caches = (held.keys.transpose(1, 2), held.values.transpose(1, 2))
        lengths = held.cumulative_length.expand(len(key))
        rotated, kv_lens = call("rotary_kv_append", *given, table, *caches, lengths)
        # the model's mask was made before its first append, and does not show a second one to the same layer
        self._rotated, self.lengths = rotated.transpose(1, 2), None if again else kv_lens
        assert APPENDS.counts is not None
        APPENDS.counts.append((held.cumulative_length, key.shape[2]))
        return held.keys, held.values

    def query(self, query: torch.Tensor) -> torch.Tensor:
        """The rotated queries, where ``query`` was not rotated."""
        if self._waiting is None:
            return query
        if query is not self._query or self._rotated is None:
            _refuse()
        rotated, self._waiting = self._rotated, None
        assert rotated is not None
        return rotated

    def finish(self) -> None:
        """Raise RegistryError if a rotation still waits."""
        if self._waiting is not None:
            _refuse()


class AppendProbe:
    """A stand-in for a cache, which notes whether keys and queries go from the rotation to it and to attention."""

    def __init__(self) -> None:
        self.rotated: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.updated: list[torch.Tensor] = []
        self.attended: list[torch.Tensor] = []
        self.lengths = None

    def rotate(self, own: QkRotation, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.rotated.append(own(*given))
        return self.rotated[-1]

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.updated.append(key)
        return key, value

    def query(self, query: torch.Tensor) -> torch.Tensor:
        self.attended.append(query)
        return query

    @property
    def holds(self) -> bool:
        """Whether one rotation's queries were attended by, and its keys appended, as they are."""
        if not len(self.rotated) == len(self.updated) == len(self.attended) == 1:
            return False
        q, k = self.rotated[0]
        return self.attended[0] is q and self.updated[0] is k


def _learns(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def filled_layer(cache: Any, index: Any) -> Any:
    """The layer of a static cache that keeps all keys in rows, and has its memory; None for any other layer."""
    layers = getattr(cache, "layers", ())
    held: Any = layers[index] if isinstance(index, int) and 0 <= index < len(layers) else None
    # of other versions of transformers a layer does not count its tokens on the device
    counted = type(held) is StaticLayer and isinstance(getattr(held, "cumulative_length", None), torch.Tensor)
    return held if counted and held.is_initialized else None


def _fits(held: Any, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a cache's layer has the dtype and the sizes of new keys and values."""
    batch, heads, room, width = held.keys.shape
    fits = key.shape == value.shape == (batch, heads, key.shape[2], width) and key.shape[2] <= room
    alike = key.dtype is value.dtype is held.keys.dtype is held.values.dtype
    return fits and alike and held.keys.shape == held.values.shape


def _check_room(held: Any, new: int) -> None:
    """Raise OutOfRangeError for ``new`` tokens that have no room in a layer whose length the host need not wait for."""
    if is_compiling() or held.cumulative_length.device.type != "cpu":
        return
    room, there = held.keys.shape[2], int(held.cumulative_length)
    if there + new > room:
        raise OutOfRangeError(
            f"a StaticCache of {room} tokens has {there}, and {new} are new", hint="make it with a larger max_cache_len"
        )


def _refuse() -> None:
    refuse(
        "apply: the model changes rotated queries or keys, which it did not do when it was applied",
        hint="apply again after the change",
        kind=RegistryError,
    )


APPENDS = CacheAppends()
"""What the forward of each thread knows."""
