"""Runs on devices of different hardware, each in a thread of its own: Ctrl-C and a fault of one end all in order."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .events import Event, Observer, Result, RunEnded, SecondsLeft

DeviceRun = Callable[[Observer, threading.Event], tuple[Result, ...]]
"""Tunes on some devices; tells the observer, and ends soon after the event is set."""


def side_by_side(
    runs: Sequence[DeviceRun], observer: Observer, stop: threading.Event | None = None
) -> tuple[Result, ...]:
    """The results of all runs, in their order. The observer is called by one thread at a time, with one RunEnded.

    ``stop``: when another thread sets it, all runs end as by Ctrl-C. Raises the first fault, when all runs have ended.
    One run alone stays in this thread.
    """
    stop = stop or threading.Event()
    if len(runs) == 1:
        return runs[0](observer, stop)
    told = _OneObserver(observer)
    with concurrent.futures.ThreadPoolExecutor(len(runs), "tune") as pool:
        futures = [pool.submit(run, told.by(number), stop) for number, run in enumerate(runs)]
        try:
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
        except KeyboardInterrupt:
            pass  # each run then ends as by a Ctrl-C of its own, and says so
        finally:
            stop.set()
    results = tuple(result for future in futures for result in future.result())
    observer(together([end for _, end in sorted(told.ended.items())]))
    return results


@dataclass
class _OneObserver:
    """Passes on the events of several runs; keeps their RunEnded events, and tells the longest of their times left."""

    observer: Observer
    ended: dict[int, RunEnded] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def by(self, number: int) -> Observer:
        """The observer of one run."""

        def observe(event: Event) -> None:
            with self.lock:
                if isinstance(event, RunEnded):
                    self.ended[number] = event
                    self.left.pop(number, None)
                    return
                if isinstance(event, SecondsLeft):
                    self.left[number] = event.seconds
                    event = SecondsLeft(max(self.left.values()))
                self.observer(event)

        return observe


def together(ended: Sequence[RunEnded]) -> RunEnded:
    """One RunEnded for runs that went on at the same time, without ``saving``: savings do not add up."""
    compiled: Counter[str] = Counter()
    for one in ended:
        compiled.update(one.compile_seconds)  # seconds add up as counts do
    return replace(
        ended[0],
        seconds=max(one.seconds for one in ended),
        worker_seconds=sum(one.worker_seconds for one in ended),
        trials=sum(one.trials for one in ended),
        interrupted=any(one.interrupted for one in ended),
        undecided=sum(one.undecided for one in ended),
        worker_share=None,
        kernel_share=None,
        compile_seconds=dict(compiled),
        saving=None,
        timed_out=any(one.timed_out for one in ended),
        devices=tuple(device for one in ended for device in one.devices),
    )
