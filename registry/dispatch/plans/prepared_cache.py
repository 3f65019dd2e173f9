"""The cache of prepared tensors: found by their sources, refilled when these change, dropped when these die."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch

from ...backends.cuda_stream import current_stream
from ...forking import renewed_in_child
from ..warning import tell_caller
from .own_thread import made_apart
from .source_tensor import SourceTensor

StoragePlace = tuple[Hashable, ...]
"""Key of a prepared tensor: the implementation, the tensor's name and its sources' memory."""

Versions = tuple[int, ...]
"""torch's version counters of the sources."""

Make = Callable[[tuple[Any, ...]], torch.Tensor]
"""Makes a prepared tensor from its sources. It keeps the implementation alive, whose id is part of a place."""


@dataclass(slots=True, eq=False)
class PreparedEntry:
    """One prepared tensor.

    sources   the arguments of ``make``; tensors are held weakly
    versions  the sources' versions that ``tensor`` was made from; None while it is refilled, or if it is not in a cache
    captured  True if a CUDA graph may read the tensor at every replay: its memory must last as long as its sources
    kept      former tensors that a graph may read
    streams   handles of the streams that have read the tensor
    used      the number of the cache's latest look-up that found it
    """

    make: Make
    tensor: torch.Tensor
    sources: tuple[SourceTensor | Any, ...] = ()
    versions: Versions | None = None
    captured: bool = False
    kept: list[torch.Tensor] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    used: int = 0

    def read_here(self) -> None:
        """Record that the current stream reads the tensor, so that its memory is reused only after that.

        torch's allocator gives freed memory to the stream that it was allocated on, without waiting for other streams.
        """
        index = self.tensor.get_device()
        if index >= 0 and (stream := current_stream(index)) not in self.streams:
            self.tensor.record_stream(torch.cuda.current_stream(index))
            self.streams.add(stream)

    def values(self) -> tuple[Any, ...] | None:
        """The sources with their current content; None if the memory of one was freed."""
        found = tuple(one.tensor() if isinstance(one, SourceTensor) else one for one in self.sources)
        gone = any(isinstance(one, SourceTensor) and now is None for one, now in zip(self.sources, found, strict=True))
        return None if gone else found

    def renew(self, made: torch.Tensor, versions: Versions | None) -> None:
        """Take over ``made``, copied into the memory of the former tensor if it fits, which graphs and streams read."""
        self.versions = None
        for former in self.kept:
            if _fits(former, made):
                former.copy_(made)
        if self.tensor is not made:
            if _fits(self.tensor, made):
                self.tensor.copy_(made)
            else:
                if self.captured:
                    self.kept.append(self.tensor)
                self.tensor = made
                self.streams.clear()
        _wait_for(made)
        self.versions = versions

    @property
    def nbytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in (self.tensor, *self.kept))


class Records(dict[tuple[Any, ...], tuple[Any, ...]]):
    """The looked-up entries that one plan remembers."""

    __slots__ = ("__weakref__",)


class PreparedCache:
    """Entries by the memory of their sources; an entry is dropped when the storage of one of its sources dies.

    A source is identified by its storage, so that new views in each call find one entry; it is unchanged while its
    version counter is, which views and ``detach()`` share. Above a device's budget of bytes the least recently used
    entries are dropped, except for the newest, and for those that a captured graph may read.
    """

    def __init__(self, budget: Callable[[torch.device], int] = lambda _: sys.maxsize) -> None:
        self._budget = budget
        self._uses = count(1)
        self._lock = renewed_in_child(self, "_lock", threading.RLock)
        # in a forked child no other thread changes entries
        self._depth = renewed_in_child(self, "_depth", int)
        self._burying = renewed_in_child(self, "_burying", bool)
        self._entries: dict[StoragePlace, PreparedEntry] = {}
        self._places: dict[int, set[StoragePlace]] = {}
        self.dead: deque[int] = deque()
        """Ids of dead storages whose entries are not dropped yet."""
        self._records: weakref.WeakValueDictionary[int, Records] = weakref.WeakValueDictionary()

    def follow(self, records: Records) -> None:
        """Clear ``records``, which are held weakly, whenever entries are dropped."""
        with self._held():
            self._records[id(records)] = records

    def find(self, place: StoragePlace, versions: Versions) -> PreparedEntry | None:
        """The entry of that place, if it was made from those versions; else None."""
        # first, since the id of a storage in dead may already be another storage's
        if self.dead:
            with self._held():
                if not self._bury():
                    return None
        return self._holding(place, versions)

    def put(
        self, place: StoragePlace, make: Make, made: torch.Tensor, sources: tuple[Any, ...], versions: Versions
    ) -> PreparedEntry:
        """Add the tensor that ``make`` made from ``sources``, or return the entry that another thread has added first.

        During ``_bury`` the entry is not added.
        """
        made = _no_view(made, sources)
        with self._held():
            if not self._bury():
                _wait_for(made)
                return PreparedEntry(make, made)
            found = self._holding(place, versions)
            if found is not None:
                return found
            entry = self._entries.get(place) or PreparedEntry(make, made, tuple(map(SourceTensor.of, sources)))
            entry.renew(made, versions)
            entry.used = next(self._uses)
            self._hold(place, entry, _tensors(sources))
            dropped = self._shrink(entry)
        if dropped:
            self._tell(made.device)
        return entry

    def made_of(self, tensors: Iterable[torch.Tensor]) -> list[PreparedEntry]:
        """The entries that were made from the storages of ``tensors``, each once."""
        with self._held():
            self._bury()
            places = [self._places.get(id(tensor.untyped_storage()), ()) for tensor in tensors]
            found = dict.fromkeys(place for some in places for place in some)
            return [self._entries[place] for place in found if place in self._entries]

    def remake(self, entry: PreparedEntry) -> bool:
        """Make an entry's tensor again from its sources, in its memory; False if a source was freed.

        Its versions stay as they are, since torch did not count the change.
        """
        while (values := entry.values()) is not None:
            versions = entry.versions
            made = _no_view(made_apart(partial(entry.make, values), entry.tensor.device), values)
            with self._held():
                # otherwise another thread has renewed it, perhaps from newer sources
                if entry.versions is versions:
                    entry.renew(made, versions)
                    self.empty_records()
                    return True
        return False

    def pin(self, place: StoragePlace, entry: PreparedEntry, sources: tuple[torch.Tensor, ...]) -> None:
        """Keep the entry's tensor as long as its sources live: a graph is being captured with it."""
        with self._held():
            entry.captured = True
            held = self._entries.get(place, entry)
            if held is not entry:
                held.kept.append(entry.tensor)
            self._hold(place, held, sources)

    def clear(self) -> None:
        """Drop all entries that no graph may read, e.g. because the implementations have changed."""
        with self._held():
            self._bury()
            for place, entry in list(self._entries.items()):
                if not (entry.captured or entry.kept):
                    self._entries.pop(place, None)
            for places in list(self._places.values()):
                places.intersection_update(self._entries)
            self.empty_records()

    def nbytes(self) -> int:
        """Bytes that all entries hold, on all devices."""
        with self._held():
            self._bury()
            return sum(entry.nbytes for entry in list(self._entries.values()))

    def _holding(self, place: StoragePlace, versions: Versions) -> PreparedEntry | None:
        entry = self._entries.get(place)
        if entry is None or entry.versions != versions:
            return None
        entry.used = next(self._uses)
        return entry

    def _shrink(self, newest: PreparedEntry) -> bool:
        """Drop the least recently used entries above a device's budget; True if there were any. Needs ``_held``."""
        device = newest.tensor.device
        here = [(place, entry) for place, entry in self._entries.items() if entry.tensor.device == device]
        total, budget = sum(entry.nbytes for _, entry in here), self._budget(device)
        if 2 * total <= budget:
            return False
        # plans remember entries without a look-up: clear that, so that used entries are looked up again
        self.empty_records()
        oldest = sorted(here, key=lambda pair: pair[1].used)
        spared = [entry is newest or entry.captured or bool(entry.kept) for _, entry in oldest]
        dropped = False
        for (place, entry), spare in zip(oldest, spared, strict=True):
            if total > budget and not spare:
                total -= entry.nbytes
                entry.versions = None  # plans that remember the entry look it up again
                dropped = self._entries.pop(place, None) is not None or dropped
        if dropped:
            for places in list(self._places.values()):
                places.intersection_update(self._entries)
        return dropped

    def _tell(self, device: torch.device) -> None:
        tell_caller(
            self,
            f"budget {device}",
            f"prepared weights on {device} would hold more than their budget of {self._budget(device):,} bytes: those"
            " that were not used for longest are dropped, and prepared again by their next call;"
            " registry.configure(prepared_bytes=...) sets the budget",
        )

    def _hold(self, place: StoragePlace, entry: PreparedEntry, sources: tuple[torch.Tensor, ...]) -> None:
        for source in sources:
            storage = source.untyped_storage()
            token = id(storage)
            if token not in self._places:
                # torch keeps the storage's Python object alive as long as its memory, also when only views are left
                weakref.finalize(storage, self._died, token).atexit = False
            self._places.setdefault(token, set()).add(place)
        self._entries[place] = entry  # last, so that every entry that is found will be dropped with its sources

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def _died(self, token: int) -> None:
        self.dead.append(token)
        # garbage may be collected while this very thread is changing entries: then the next look-up drops the entries
        if self._lock.acquire(blocking=False):
            try:
                if not self._depth:
                    with self._held():
                        self._bury()
            finally:
                self._lock.release()

    def _bury(self) -> bool:
        """Drop the entries of dead storages; False if a call of this function is in progress. Needs ``_held``.

        A signal handler or a finalizer may call it during another call. Entries may be half dropped then, and a new
        storage may have the id of a dead one: so such a caller must neither find nor add an entry.
        """
        if self._burying:
            return False
        try:
            self._burying = True
            while self.dead:
                self._drop(self.dead[0])
                self.dead.popleft()  # last, so that look-ups wait until the entries are dropped
        finally:
            self._burying = False
        return True

    def _drop(self, token: int) -> None:
        """Drop the entries of one storage. If interrupted, the next ``_bury`` does it again."""
        for place in tuple(self._places.get(token, ())):
            self._entries.pop(place, None)
        self.empty_records()
        self._places.pop(token, None)

    def empty_records(self) -> None:
        """Clear the records of all plans, which then look their entries up again."""
        for records in list(self._records.values()):
            records.clear()


def _wait_for(made: torch.Tensor) -> None:
    """Wait on the host for a tensor that was made on this stream.

    Any stream may read it from then on, and a dependent launch before it waits for the kernel ahead.
    """
    if made.device.type == "cuda":
        torch.cuda.current_stream(made.device).synchronize()


def _tensors(sources: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(source for source in sources if isinstance(source, torch.Tensor))


def _no_view(made: torch.Tensor, sources: tuple[Any, ...]) -> torch.Tensor:
    """``made``, or a copy if it is a view of a source: a view would keep the source, and so its entry, alive."""
    viewed = any(made.untyped_storage() is source.untyped_storage() for source in _tensors(sources))
    return made.clone() if viewed else made


def _fits(old: torch.Tensor, new: torch.Tensor) -> bool:
    one, other = ((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (old, new))
    expanded = any(size > 1 and stride == 0 for size, stride in zip(old.shape, old.stride(), strict=True))
    return one == other and not expanded
