"""One tuning run with nothing but the implementations of one vendor, from one plugin file or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.decide.judge import BLOCKS, PRE_ROUNDS
from registry.tuner.events import Event, Note, Result, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.series import PROMISING
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

from ..conftest import block_plugins
from ..tiers import THOROUGH

CPU = Device.of("cpu")
_MORE_RUNS = 2
"""How many times a run is made anew whose finals other work on the machine left undecided, as their note asks for."""


def each_of(names: Iterable[str], repeated: Collection[str]) -> list[Any]:
    """Parameters: those that are ``repeated`` do what another of the names does, in another way, and are thorough."""
    return [pytest.param(name, marks=THOROUGH) if name in repeated else pytest.param(name) for name in names]


def left_out(request: pytest.FixtureRequest, repeated: Collection[str]) -> Collection[str]:
    """The ``repeated`` unless a thorough test of the module is to be run: each takes 0.2 s of a core."""
    items = (item for item in request.session.items if item.path == request.path)
    return () if any(item.get_closest_marker("thorough") for item in items) else repeated


class CheatingRun:
    """``offered``, ``trials`` and ``finished`` (results) by the names of implementations without their ``vendor``.

    ``left_out`` are names of those that are offered and not tried.
    """

    def __init__(
        self, plugin: str, vendor: str, problems: Sequence[Problem], folder: Path, *others: str,
        left_out: Collection[str] = (),
    ) -> None:  # fmt: skip
        clock, events = time.perf_counter_ns, list[Event]()
        with pytest.MonkeyPatch.context() as patch:
            block_plugins(patch)
            catalog = Catalog()
            try:
                for name in (plugin, *others):
                    catalog.load_file(Path(__file__).parent / name)
            finally:
                # a file may patch this process too, and the other tests need a clock
                time.perf_counter_ns = clock
            found = [one for op in {each.op for each in problems} for one in catalog.implementations(op)]
            offered = sorted(one.name for one in found if one.name.startswith(f"{vendor}."))
            names = [name for name in offered if name.partition(".")[2] not in left_out]
            self.offered = {name.partition(".")[2] for name in offered}
            self.left_out = set(left_out)
            # the lock of the device is this run's own: it waits for no other that measures
            patch.setenv("KERNEL_REGISTRY_CACHE", str(folder / "cache"))
            # cheats are refused before the finals, or where these look at outputs: to decide among the honest, few
            # processes do, with the rounds of a pre-final
            patch.setattr("registry.tuner.decide.judge.MOST_BLOCKS", BLOCKS)
            patch.setattr("registry.tuner.decide.contest.ROUNDS", PRE_ROUNDS)
            for attempt in range(_MORE_RUNS + 1):
                events.clear()
                self.results: Sequence[Result] = tune(
                    problems,
                    catalog=catalog,
                    device=CPU,
                    database=str(folder / f"tuning{attempt}.db"),
                    options=TuneOptions(Budget(trials=80), implementations=names),
                    observer=events.append,
                )
                if not any("its finals were disturbed" in event.message for event in events if isinstance(event, Note)):
                    break
        done = [event for event in events if isinstance(event, TrialDone)]
        self.trials = {event.implementation.partition(".")[2]: event for event in done}
        self.events = events

    def was_given_up(self, name: str) -> bool:
        """Whether a machine that was busy made the first launches so slow that hardly one more followed.

        What is honest in its first calls has then done nothing wrong, and it enters no finals.
        """
        return self._is_slower(name, TimingProtocol.of(CPU).hopeless)

    def was_left_to_finals(self, name: str) -> bool:
        """Whether a machine that was busy made a candidate so slow that it did not promise to win.

        Its own size is then not probed before the finals, which it does not enter, or is refused in.
        """
        return self._is_slower(name, PROMISING)

    def _is_slower(self, name: str, most: float) -> bool:
        """Whether a candidate was right and took over ``most`` times as long as the fastest of its problem."""
        trial = self.trials[name]
        times = [each.median_us for each in self.trials.values() if each.problem == trial.problem and each.median_us]
        return trial.median_us is not None and trial.median_us > most * min(times)

    @property
    def winners(self) -> dict[str, str]:
        """Op -> the winner's name."""
        return {result.problem.op: result.implementation.partition(".")[2] for result in self.results}


def asked_again(run: CheatingRun, name: str, tuned: Callable[[Collection[str]], CheatingRun]) -> CheatingRun:
    """A run in which a cheat is not ``ok``, or was given up: ``run``, or the last of up to two that are made anew.

    Other work on the machine may have hidden what the cheat does, which must not have won then. ``tuned`` makes a run
    without implementations of these names.
    """
    for _ in range(2):
        if run.trials[name].status != "ok" or run.was_given_up(name):
            break
        assert name not in {result.implementation.partition(".")[2] for result in run.results}
        run = tuned(run.left_out)
    return run
