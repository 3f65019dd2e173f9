"""Reads a chrome trace of torch's profiler: the calls of ops, and the time of the kernels that each launched."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dispatch.torch_side.profiles import parsed_name
from ..errors import RegistryError

_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class ProfiledCall:
    """One call of an op. ``dims`` is the text of its problem's dimensions, "" if it poses none.

    ``host_us``: its time on the host. ``device_us``: that of the kernels and copies that it launched.
    """

    op: str
    implementation: str
    dims: str
    host_us: float
    device_us: float


@dataclass(frozen=True)
class Trace:
    """The calls of a program's trace. ``host_us``: from its first event to its last. ``device_us``: of all kernels."""

    calls: tuple[ProfiledCall, ...] = ()
    host_us: float = 0.0
    device_us: float = 0.0

    @property
    def on_device(self) -> bool:
        """Whether calls launched kernels of a GPU, so that device time is what counts."""
        return any(call.device_us for call in self.calls)

    @property
    def of_calls_alone(self) -> Trace:
        """This trace as if the program had done nothing but these calls."""
        host, device = (sum(getattr(call, name) for call in self.calls) for name in ("host_us", "device_us"))
        return Trace(self.calls, host, device)

    def only(self, ops: Iterable[str]) -> Trace:
        """The calls of these ops, in the time of the whole program."""
        wanted = frozenset(ops)
        return Trace(tuple(call for call in self.calls if call.op in wanted), self.host_us, self.device_us)

    def __add__(self, other: Trace) -> Trace:
        return Trace(self.calls + other.calls, self.host_us + other.host_us, self.device_us + other.device_us)


@dataclass
class _Range:
    """A call while its thread's events are gone through."""

    name: tuple[str, str, str]
    start: float
    end: float
    device_us: float = 0.0


def read_trace(path: Path) -> Trace:
    """The calls in a trace file. Raises RegistryError for a file that is no trace."""
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return calls_of(data["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise RegistryError(f"{path} is no trace of torch's profiler: {type(fault).__name__} {fault}") from None


def calls_of(events: Iterable[Mapping[str, Any]]) -> Trace:
    """The calls among a trace's events.

    A kernel belongs to the innermost call in which it was launched: the launch has its correlation id, and lies within
    the call's time in its thread. A replay of a CUDA graph is no launch by a call.
    """
    whole = [event for event in events if event.get("ph") == "X" and "ts" in event]
    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = defaultdict(list)
    kernels: dict[Any, float] = defaultdict(float)
    for event in whole:
        kind = event.get("cat")
        if kind in _ON_DEVICE:
            kernels[event.get("args", {}).get("correlation")] += float(event.get("dur", 0.0))
        elif kind in _LAUNCHES or (kind in {"user_annotation", "cpu_op"} and parsed_name(event["name"])):
            threads[event.get("pid"), event.get("tid")].append(event)
    calls = [call for each in threads.values() for call in _of_thread(each, kernels)]
    on_host = [event for event in whole if event.get("cat") in {"user_annotation", "cpu_op", *_LAUNCHES}]
    return Trace(tuple(calls), _span(on_host), sum(kernels.values()))


def _of_thread(events: Sequence[Mapping[str, Any]], kernels: Mapping[Any, float]) -> Iterator[ProfiledCall]:
    open_ranges: list[_Range] = []
    # of two events that begin together the longer one is outside
    for event in sorted(events, key=lambda one: (one["ts"], -one.get("dur", 0.0))):
        start = float(event["ts"])
        while open_ranges and open_ranges[-1].end <= start:
            yield _closed(open_ranges.pop())
        name = parsed_name(event["name"])
        if name is not None:
            open_ranges.append(_Range(name, start, start + float(event.get("dur", 0.0))))
        elif open_ranges:
            open_ranges[-1].device_us += kernels.get(event.get("args", {}).get("correlation"), 0.0)
    while open_ranges:
        yield _closed(open_ranges.pop())


def _closed(ended: _Range) -> ProfiledCall:
    return ProfiledCall(*ended.name, ended.end - ended.start, ended.device_us)


def _span(events: Sequence[Mapping[str, Any]]) -> float:
    if not events:
        return 0.0
    first = min(float(event["ts"]) for event in events)
    return max(float(event["ts"]) + float(event.get("dur", 0.0)) for event in events) - first
