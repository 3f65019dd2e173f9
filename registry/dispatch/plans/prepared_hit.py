"""The text by which a plan finds its prepared tensors at each call, fast if their sources are unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...backends.cuda_stream import current_stream
from ..torch_side.torch_private import stream_capturing
from .prepared_cache import PreparedCache, PreparedEntry, Records, Versions

_MOST_RECORDS = 4096
"""The most records of one plan: a model has some hundred weights of one shape, read on a few streams."""


@dataclass(frozen=True)
class Hit:
    """Text that sets the variables ``prepared`` from a call's values ``a0``, ``a1`` ...

    ``names`` are the values of the text's other names, which begin with ``e_``. ``addresses`` and ``stream`` are
    variables that it may set, too: the addresses of prepared tensors, by name, and the current stream.
    """

    lines: Sequence[str]
    names: Mapping[str, Any]
    prepared: tuple[str, ...]
    addresses: Mapping[str, str] = field(default_factory=dict)
    stream: str = ""


@dataclass(frozen=True)
class Sources:
    """Places of sources among a call's values: ``tensors`` for each prepared tensor in order, and ``plain`` values."""

    tensors: tuple[tuple[int, ...], ...]
    plain: tuple[int, ...]

    @property
    def all_tensors(self) -> tuple[int, ...]:
        """The places in ``tensors``, each once, ascending."""
        return tuple(sorted({place for places in self.tensors for place in places}))


def streams_of(device: torch.device) -> tuple[Callable[[int], int], Callable[[], bool]]:
    """Two functions: the current stream of the device of an index, and whether that stream is being captured."""
    if device.type == "cuda":
        return current_stream, stream_capturing
    return (lambda _: 0), (lambda: False)


def unremembered(count: int, values: int, extend: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Hit:
    """Text that calls ``extend`` each time, for ``count`` tensors, some of them prepared from a list of tensors."""
    prepared = tuple(f"p{number}" for number in range(count))
    line = f"{', '.join(prepared)}, = e_extend(({_listed(range(values))}))[{values}:]"
    return Hit([line], {"e_extend": extend}, prepared)


def hit(
    cache: PreparedCache,
    sources: Sources,
    values: int,
    device: torch.device,
    entries_of: Callable[[tuple[Any, ...]], list[PreparedEntry]],
) -> Hit:
    """Text that finds a record of the prepared tensors by the memory of all sources and by the stream.

    A record is valid while its entries have the versions that it was made with; the cache clears all records when a
    source has died. A plan's tensors have fixed shapes, strides and dtypes, so storage and address identify memory. The
    entries have recorded the stream of the record. The default stream cannot be captured.
    """
    stream_of, capturing = streams_of(device)
    index = device.index or 0
    records = Records()
    cache.follow(records)

    def make(given: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        key, versions = _state(sources, given, stream_of(index))
        entries = entries_of(given)
        if versions is not None and not capturing():
            record = _record(sources, versions, entries)
            if record is not None and _state(sources, given, stream_of(index)) == (key, versions):
                if len(records) >= _MOST_RECORDS:
                    records.clear()
                records[key] = record
        return tuple([entry.tensor for entry in entries])

    prepared = tuple(f"p{number}" for number in range(len(sources.tensors)))
    names = {"e_dead": cache.dead, "e_find": records.get, "e_stream_of": stream_of, "e_capturing": capturing}
    lines = _lines(sources, values, index, prepared)
    addresses = {name: f"e_address_{name}" for name in prepared}
    return Hit(lines, {**names, "e_make": make}, prepared, addresses, "e_stream")


def _lines(sources: Sources, values: int, index: int, prepared: Sequence[str]) -> list[str]:
    places = sources.all_tensors
    memory = "".join(f"id(a{place}.untyped_storage()), a{place}.data_ptr(), " for place in places)
    held = "".join(f", e_entry_{name}, e_held_{name}, {name}, e_address_{name}" for name in prepared)
    holds = "".join(f" and e_entry_{name}.versions is e_held_{name}" for name in prepared)
    return [
        "e_holds = False",
        f"e_stream = e_stream_of({index})",
        # first, since the id of a storage in e_dead may already be another storage's
        f"e_record = None if e_dead else e_find(({memory}{_listed(sources.plain)}e_stream,))",
        "if e_record is not None:",
        f"    e_versions{held} = e_record",
        "    try:",
        f"        e_holds = e_versions == ({''.join(f'a{place}._version, ' for place in places)}){holds}"
        " and not (e_stream and e_capturing())",
        # tensors of inference mode have no version
        "    except RuntimeError: pass",
        "if not e_holds:",
        f"    {', '.join(prepared)}, = e_make(({_listed(range(values))}))",
        *(f"    e_address_{name} = {name}.data_ptr()" for name in prepared),
    ]


def _listed(places: Sequence[int]) -> str:
    return "".join(f"a{place}, " for place in places)


def _state(sources: Sources, given: tuple[Any, ...], stream: int) -> tuple[tuple[Any, ...], Versions | None]:
    """The key of a record, and the sources' versions, None for tensors of inference mode."""
    tensors = [given[place] for place in sources.all_tensors]
    key: list[Any] = []
    for tensor in tensors:
        key += [id(tensor.untyped_storage()), tensor.data_ptr()]
    key += [given[place] for place in sources.plain]
    versions = None if any(tensor.is_inference() for tensor in tensors) else tuple(one._version for one in tensors)
    return (*key, stream), versions


def _record(sources: Sources, versions: Versions, entries: Sequence[PreparedEntry]) -> tuple[Any, ...] | None:
    """The record of these entries; None if a source has changed since its entry was looked up."""
    of = dict(zip(sources.all_tensors, versions, strict=True))
    record: list[Any] = [versions]
    for entry, places in zip(entries, sources.tensors, strict=True):
        held, tensor = entry.versions, entry.tensor
        if held != tuple(of[place] for place in places) or entry.versions is not held:
            return None
        record += [entry, held, tensor, tensor.data_ptr()]
    return tuple(record)
