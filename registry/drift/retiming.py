"""Winners timed again beside their defaults, by a tuning run of its own that stores nothing which lasts."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tuning_db import CandidateKey, Decision, Environment, Interval, Protocol, Store

from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.plans.plan import Candidate
from ..problem import Problem
from ..tuner import run
from ..tuner.decide.judge import ALPHA, Times, time_ratio
from ..tuner.decide.noise import Noise
from ..tuner.events import Event, ProblemDecided
from ..tuner.limits import Budget
from ..tuner.measure.protocol import TimingProtocol
from ..tuner.options import TuneOptions
from ..tuner.planning.problems import ProblemPlan, plan
from ..tuner.stored_winners import problem_key
from .sampling import InstalledWinner

DriftKind = Literal["same", "slower", "faster", "wrong", "stale", "no default", "undecided"]

ALARMS = frozenset({"slower", "faster", "wrong"})
"""Kinds of findings that say that what is stored of a winner does not hold any more."""

_WRONG = ("wrong_result", "nondeterministic")


@dataclass(frozen=True)
class DriftFinding:
    """A winner, timed again. Ratios are the default's time over the winner's, ``then`` as stored and ``now``.

    kind    "slower": it gains less on the default than was stored, by disjoint intervals, or is slower than the
            default; "faster": it gains more; "same"; "wrong": it is not right any more; and where nothing could be
            compared "stale" (its source or space changed), "no default" (it is the default itself) or "undecided"
    reason  why, where nothing could be compared
    """

    winner: InstalledWinner
    kind: DriftKind
    then: Interval | None = None
    now: Interval | None = None
    reason: str = ""

    @property
    def alarms(self) -> bool:
        """True if the stored evidence does not hold any more."""
        return self.kind in ALARMS


def retimed(winners: Sequence[InstalledWinner], catalog: Catalog, device: Device) -> list[DriftFinding]:
    """A finding for each winner, in order. Raises what ``tune`` raises.

    Each is verified and timed in finals against its default, in several processes, as tune does; nothing is stored.
    """
    if not winners:
        return []
    problems = [one.problem for one in winners]
    plans = {each.problem: each for each in plan(problems, catalog, device)}
    pairs = {one.problem: _pair(one, plans[one.problem]) for one in winners}
    timed = {problem: pair for problem, pair in pairs.items() if isinstance(pair, tuple)}
    own = [one for one in winners if one.problem in timed]
    with tempfile.TemporaryDirectory(prefix="registry-drift-") as folder:
        path = Path(folder) / "drift.db"
        mishaps = _run(own, timed, catalog, device, path) if timed else {}
        with Store.open(path) as store:
            return [_finding(one, pairs[one.problem], store, mishaps.get(one.problem, "")) for one in winners]


_Pair = tuple[Candidate, Candidate]
"""A winner and the default of its problem."""


def _pair(winner: InstalledWinner, there: ProblemPlan) -> _Pair | DriftFinding:
    """The winner and its default, or the finding where these cannot be timed."""
    then = winner.decision.default_ratio
    if there.skipped:
        return DriftFinding(winner, "undecided", then, reason=there.skipped)
    candidate, defaults = _candidate(winner.decision, there), there.defaults()
    if candidate is None:
        told = "its source, its space or its op changed, or it does not run here: tune it again"
        return DriftFinding(winner, "stale", then, reason=told)
    if not defaults or defaults[0].key == candidate.key:
        return DriftFinding(winner, "no default", then, reason="it is the default itself")
    return candidate, defaults[0]


def _candidate(decision: Decision, there: ProblemPlan) -> Candidate | None:
    """The candidate of a decision, if it is what it was when it was decided."""
    key = decision.candidate
    if decision.problem != problem_key(there.op, there.problem):
        return None
    for choice in there.supported:
        if choice.implementation.name == key.implementation:
            same = choice.has(dict(key.config)) and choice.implementation.fingerprint() == key.fingerprint
            return Candidate(choice.implementation, dict(key.config)) if same else None
    return None


def _run(
    winners: Sequence[InstalledWinner],
    pairs: Mapping[Problem, _Pair],
    catalog: Catalog,
    device: Device,
    path: Path,
) -> Mapping[Problem, str]:
    """Time the winners against the defaults; why a problem was not decided, by problem."""
    environment, timing = Environment(device.hardware(), device.software()), TimingProtocol.of(device)
    protocol = Protocol(timing.regime, timing.details)
    with Store.open(path) as store:
        own = store.start_run(environment)
        for one in winners:
            # the winner to beat in this environment; its trial is not here
            store.publish(own, replace(one.decision, environment=environment, protocol=protocol, trial_uid=None))
    names = {each.implementation.name for pair in pairs.values() for each in pair}
    wanted = [one.problem for one in winners]
    # a trial for the default of each implementation that takes part: the default's among them
    most = max(len(each.supported) for each in plan(wanted, catalog, device, sorted(names)))
    mishaps: dict[Problem, str] = {}

    def observe(event: Event) -> None:
        if isinstance(event, ProblemDecided) and event.result.verdict == "none":
            mishaps[event.result.problem] = event.result.reason

    options = TuneOptions(Budget(trials=most), implementations=sorted(names), retune=True, all_sizes=True)
    run.tune(wanted, catalog=catalog, device=device, database=str(path), options=options, observer=observe)
    return mishaps


def _finding(winner: InstalledWinner, pair: _Pair | DriftFinding, store: Store, mishap: str) -> DriftFinding:
    if isinstance(pair, DriftFinding):
        return pair
    decision = winner.decision
    key, then = decision.candidate, decision.default_ratio
    tried = next((one for one in store.trials(decision.problem) if one.candidate == key), None)
    fault = f"{tried.status}: {tried.message}" if tried is not None and tried.status != "ok" else ""
    if fault.startswith(_WRONG):
        return DriftFinding(winner, "wrong", then, reason=fault)
    default = CandidateKey(pair[1].implementation.name, pair[1].implementation.fingerprint(), dict(pair[1].config))
    blocks = _blocks(store, decision)
    if not any({key.key, default.key} <= block.keys() for block in blocks):
        return DriftFinding(winner, "undecided", then, reason=mishap or fault or "its finals were not held")
    ratio = time_ratio(default.key, key.key, blocks, ALPHA, Noise(), elsewhere=True)
    now = Interval(ratio.value, ratio.low, ratio.high)
    if default.implementation not in {key.implementation, *decision.baselines}:
        return DriftFinding(winner, "undecided", then, now, "its default is another one than then: tune it again")
    return DriftFinding(winner, _kind(then, now), then, now)


def _kind(then: Interval | None, now: Interval) -> DriftKind:
    if now.high < 1 or (then is not None and now.high < then.low):
        return "slower"
    return "faster" if then is not None and now.low > then.high else "same"


def _blocks(store: Store, before: Decision) -> list[Times]:
    """The times of candidates in each block of the finals that followed a decision, in the order of rounds."""
    history = store.history(before.problem, before.environment.hardware)
    held = next((one for one in history if one.uid != before.uid), None)
    blocks: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(store.finals(held.uid) if held else (), key=lambda one: (one.block, one.round)):
        if one.role == "candidate" and one.candidate is not None:
            blocks[one.block][one.candidate.key].append(one.us)
    return [dict(block) for block in blocks.values()]
