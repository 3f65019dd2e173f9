"""Replaying a search: alone on one problem, or over the problems of a file with seeds and shared variants."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from registry.dispatch.plans.plan import Candidate
from registry.tuner.planning.distance import ordered, seeds_of
from registry.tuner.search.proposals import Searcher

from .format import Point
from .replay import Replay
from .strategies import Ours, Strategy

_ACTIVE_PROBLEMS = 6


@dataclass
class Curve:
    """Regret after each trial, and where the search would have stopped of itself.

    ``told`` counts the trials that other problems paid for; ``cpu_s`` is what proposing and learning took of a core.
    """

    regrets: list[float] = field(default_factory=list)
    settled: int | None = None
    told: int = 0
    cpu_s: float = 0.0

    def after(self, trials: int) -> float:
        """Regret after so many trials; a search that ran out of candidates stays where it was."""
        return self.regrets[min(trials, len(self.regrets)) - 1] if self.regrets else math.inf

    @property
    def stop(self) -> int:
        """Trials until the search settled or ended."""
        return len(self.regrets) if self.settled is None else self.settled


class Running:
    """One search on one landscape, some candidates in flight, answered in the order they were asked."""

    def __init__(self, replay: Replay, strategy: Strategy, trials: int) -> None:
        self.replay = replay
        self.curve = Curve()
        self.best: Candidate | None = None
        self._best_us: float | None = None
        self._strategy = strategy
        self._trials = trials
        self._asked = 0
        self._waiting: collections.deque[Candidate] = collections.deque()

    def step(self) -> Candidate | None:
        """Answer one candidate and return it; None when it is over."""
        began = time.thread_time()
        try:
            return self._step()
        finally:
            self.curve.cpu_s += time.thread_time() - began

    def _step(self) -> Candidate | None:
        while len(self._waiting) < self._strategy.in_flight and self._asked < self._trials:
            candidate = self._strategy.ask()
            if candidate is None:
                break
            self._asked += 1
            self._waiting.append(candidate)
        if not self._waiting:
            return None
        candidate = self._waiting.popleft()
        self._learn(candidate, self.replay.point(candidate))
        self.curve.regrets.append(self.replay.regret(self._best_us))
        if self.curve.settled is None and self._strategy.settled:
            self.curve.settled = len(self.curve.regrets)
        return candidate

    def offer(self, name: str, variants: tuple[int, ...]) -> None:
        """Measure the candidate that these variants run here, built for another problem, if it was not asked for."""
        candidate = self.replay.served(name, variants)
        if candidate is not None and self._strategy.wants(candidate):
            self.curve.told += 1
            self._learn(candidate, self.replay.point(candidate))

    def _learn(self, candidate: Candidate, point: Point) -> None:
        self._strategy.tell(candidate, point.time_us)
        if point.time_us is not None and (self._best_us is None or point.time_us < self._best_us):
            self.best, self._best_us = candidate, point.time_us


def alone(replay: Replay, strategy: Strategy, trials: int) -> Curve:
    """The curve of a search on one problem, without seeds."""
    running = Running(replay, strategy, trials)
    while running.step() is not None:
        pass
    return running.curve


def together(replays: Sequence[Replay], trials: int, seed: int, *, share: bool, stop: bool = False) -> list[Curve]:
    """The problems of one op as a run tunes them: near ones first, six at a time, winners as seeds.

    ``share``: a variant that was built for one is measured on every problem that could use it. ``stop``: each ends
    where it settles, and the next begins. Curves are in the order of ``replays``.
    """
    by_problem = {replay.plan.problem: replay for replay in replays}
    queue = collections.deque(by_problem[plan.problem] for plan in ordered([replay.plan for replay in replays]))
    built: dict[tuple[str, tuple[int, ...]], None] = {}
    active: list[Running] = []
    done: list[Running] = []
    while queue or active:
        while queue and len(active) < _ACTIVE_PROBLEMS:
            active.append(_begun(queue.popleft(), [*done, *active], trials, seed + len(done), built if share else ()))
        for running in list(active):
            candidate = running.step()
            if candidate is None or (stop and running.curve.settled is not None):
                active.remove(running)
                done.append(running)
            elif share:
                _share(running, candidate, active, built)
    curves = {running.replay.plan.problem: running.curve for running in done}
    return [curves[replay.plan.problem] for replay in replays]


def _begun(
    replay: Replay,
    others: Sequence[Running],
    trials: int,
    seed: int,
    built: collections.abc.Iterable[tuple[str, tuple[int, ...]]],
) -> Running:
    tuned = [(other.replay.plan.problem.dims, replay.own(other.best)) for other in others if other.best is not None]
    seeds = seeds_of(replay.plan, [(dims, candidate) for dims, candidate in tuned if candidate is not None])
    running = Running(replay, Ours(Searcher(replay.plan, seeds=seeds, seed=seed, exhaust=0)), trials)
    for name, variants in built:
        running.offer(name, variants)
    return running


def _share(
    running: Running, candidate: Candidate, active: Sequence[Running], built: dict[tuple[str, tuple[int, ...]], None]
) -> None:
    name, variants = candidate.implementation.name, running.replay.point(candidate).variants
    if variants and (name, variants) not in built:
        built[name, variants] = None
        for other in active:
            if other is not running:
                other.offer(name, variants)
