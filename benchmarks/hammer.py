"""Many threads on many streams call ops with changing shapes: no result may be wrong, and no thread may hang.

    python -m benchmarks.hammer [--op softmax] [--seconds 60] [--threads 8] [--streams 4]

Half of the time the threads call as a program does. Then one more thread drops every plan and the winners in memory
(`Dispatcher.forget`), again and again, for a quarter while they go on so, for the last while they call inside
``registry.using`` blocks of their own, so that kernels of every backend run. Each result is compared on its stream with
the interval that the op's tolerance allows, and a count is kept on the device: no thread waits for another. Exits with
1 when a result was wrong, a call raised or a thread did not come to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from registry import Device
from registry.correctness.bounds import Bounds, bounds_of
from registry.correctness.numerics import own_error, reference64
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import UnsupportedError

SLOW_TO_BUILD = "torch.compile"
"""A plan takes seconds to build, too long for plans that are dropped four times a second."""

STATIC: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "softmax": tuple({"cols": cols, "dtype": "bfloat16"} for cols in (256, 1000, 4096)),
    "rms_norm": tuple({"cols": cols, "dtype": "bfloat16"} for cols in (512, 4096)),
    "gemm_int4": (
        {"n": 512, "k": 1024, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"},
        {"n": 256, "k": 512, "group_size": 64, "bits": 4, "symmetric": True, "dtype": "bfloat16"},
    ),
}
GRACE_S = 60.0
"""How long a thread may take to end once it is told to: a build of a plan may be under way."""

_SYNCHRONISE_EVERY = 64
_FORGET_EVERY_S = 0.25


@dataclass(frozen=True)
class Case:
    """Arguments of an op, and where each element of its output must lie."""

    op: str
    title: str
    values: tuple[Any, ...]
    bounds: Bounds

    def wrong(self, y: torch.Tensor) -> torch.Tensor:
        """1 or 0, on the device."""
        return self.bounds.holding(y).logical_not()


def cases(
    dispatcher: Dispatcher,
    device: str,
    rows: Sequence[int],
    statics: int | None = None,
    ops: Collection[str] = frozenset(STATIC),
) -> list[Case]:
    """The ops on every number of rows; a weight is shared by all cases of one static shape, as in a model.

    ``statics``: the number of static shapes of each op.
    """
    found = []
    for name, shapes in STATIC.items():
        if name not in ops:
            continue
        op = dispatcher.catalog.op(name)
        (dynamic,) = op.dynamic
        for static in shapes[:statics]:
            shared: tuple[Any, ...] = ()
            for count in rows:
                problem = op.problem_of({**static, dynamic: count})
                values = op.inputs(problem, "normal", torch.Generator(device).manual_seed(count))
                shared = shared or values
                values = (values[0], *shared[1:])
                wide = reference64(op, values)
                (bounds,) = bounds_of(op, problem, values, wide, own_error(op, problem, values, wide))
                found.append(Case(name, str(problem), values, bounds))
    return found


@dataclass
class Outcome:
    """The outcome of a run. ``wrong``: problem -> results out of bounds; ``stuck``: threads that did not end."""

    calls: int = 0
    misses: int = 0
    forgotten: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something was called and nothing went wrong."""
        return self.calls > 0 and not (self.wrong or self.faults or self.stuck)

    def __str__(self) -> str:
        wrong = ", ".join(f"{title}: {count}" for title, count in self.wrong.items()) or "none"
        lines = [f"{self.calls} calls, {self.misses} misses, all forgotten {self.forgotten} times, wrong: {wrong}"]
        return "\n".join([*lines, *self.faults, *(f"stuck: {name}" for name in self.stuck)])


class Hammer:
    """Threads that call the same cases, each on streams of its own."""

    def __init__(self, dispatcher: Dispatcher, device: str, work: Sequence[Case], threads: int, streams: int) -> None:
        self._dispatcher = dispatcher
        self._device = torch.device(device)
        self._work = work
        self._threads = threads
        self._streams = streams
        self._lock = threading.Lock()
        self._forced = {
            name: [
                each.name
                for each in dispatcher.catalog.implementations(name)
                if self._device.type in each.device_types and each.name != SLOW_TO_BUILD
            ]
            for name in STATIC
        }

    def warm(self, *, forced: bool) -> None:
        """Compile and load what the calls need, so that the time is spent calling."""
        for case in self._work:
            for wanted in (None, *(self._forced[case.op] if forced else ())):
                self._once(case, wanted)

    def run(self, seconds: float, *, forced: bool, forget: bool = True) -> Outcome:
        """Hammer for that long, after everything was compiled."""
        self.warm(forced=forced)
        outcome, stop = Outcome(), threading.Event()
        before = self._misses()
        threads = [
            threading.Thread(target=self._guarded, args=(number, forced, stop, outcome), name=f"hammer {number}")
            for number in range(self._threads)
        ]
        if forget:
            threads.append(threading.Thread(target=self._forget, args=(stop, outcome), name="forgetting"))
        for thread in threads:
            thread.daemon = True  # a stuck thread must not keep the process from reporting it
            thread.start()
        time.sleep(seconds)
        stop.set()
        deadline = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        outcome.stuck = [thread.name for thread in threads if thread.is_alive()]
        if outcome.stuck:
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
        outcome.misses = self._misses() - before
        return outcome

    def _misses(self) -> int:
        return sum(self._dispatcher.bound(name).misses for name in STATIC)

    def _forget(self, stop: threading.Event, outcome: Outcome) -> None:
        while not stop.wait(_FORGET_EVERY_S):
            self._dispatcher.forget()
            outcome.forgotten += 1

    def _guarded(self, number: int, forced: bool, stop: threading.Event, outcome: Outcome) -> None:
        try:
            self._call(number, forced, stop, outcome)
        except BaseException as fault:
            with self._lock:
                outcome.faults.append(f"hammer {number}: {type(fault).__name__}: {fault}")
            stop.set()

    def _call(self, number: int, forced: bool, stop: threading.Event, outcome: Outcome) -> None:
        shuffle = random.Random(number)
        # a first call without anything set up by others in this thread: no context, no stream
        self._once(self._work[number % len(self._work)], None)
        streams = self._own_streams()
        # one count a stream and case: a stream writes only to its own
        counts = [torch.zeros(len(self._work), dtype=torch.int32, device=self._device) for _ in streams]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        calls = 0
        while not stop.is_set():
            place = shuffle.randrange(len(self._work))
            lane = shuffle.randrange(len(streams))
            case = self._work[place]
            wanted = shuffle.choice(self._forced[case.op]) if forced else None
            with streams[lane]:
                y = self._once(case, wanted)
                if y is not None:
                    counts[lane][place] += case.wrong(y)
                    calls += 1
                if calls % _SYNCHRONISE_EVERY == 0 and self._device.type == "cuda":
                    torch.cuda.current_stream().synchronize()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found = torch.stack(counts).sum(0).tolist()
        with self._lock:
            outcome.calls += calls
            for case, count in zip(self._work, found, strict=True):
                if count:
                    outcome.wrong[case.title] = outcome.wrong.get(case.title, 0) + count

    def _own_streams(self) -> list[Any]:
        if self._device.type == "cpu":
            return [contextlib.nullcontext()]
        return [torch.cuda.stream(torch.cuda.Stream(self._device)) for _ in range(self._streams)]

    def _once(self, case: Case, wanted: str | None) -> torch.Tensor | None:
        """The result; None when the forced implementation does not run this case."""
        call = self._dispatcher.call
        if wanted is None:
            return call(case.op, *case.values)  # type: ignore[no-any-return]
        with self._dispatcher.using(**{case.op: wanted}):
            try:
                return call(case.op, *case.values)  # type: ignore[no-any-return]
            except UnsupportedError as refused:
                if refused.__cause__ is not None:  # it was built and failed
                    raise
                return None


def hammered(
    device: str, seconds: float, threads: int, streams: int, rows: Sequence[int], ops: Collection[str]
) -> Iterator[tuple[str, Outcome]]:
    """The outcome of each way to call. ``rows``: how many rows the cases have."""
    dispatcher = Dispatcher(Catalog())
    work = cases(dispatcher, device, rows, ops=ops)
    hammer = Hammer(dispatcher, device, work, threads, streams)
    yield "as a program calls", hammer.run(0.5 * seconds, forced=False, forget=False)
    yield "while all is forgotten", hammer.run(0.25 * seconds, forced=False)
    yield "forced in turns, likewise", hammer.run(0.25 * seconds, forced=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hammer, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", action="append", choices=sorted(STATIC), help="only this one; repeatable")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=[*range(1, 17), 24, 33, 64, 100, 128, 200, 300])
    options = parser.parse_args(arguments)
    device = Device.of(options.device)
    print(f"{device.name}; {', '.join(f'{name} {version}' for name, version in device.software().items())}")
    right = True
    ops = frozenset(options.op or STATIC)
    for how, outcome in hammered(options.device, options.seconds, options.threads, options.streams, options.rows, ops):
        print(f"{how}: {outcome}", flush=True)
        right = right and outcome.ok
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
