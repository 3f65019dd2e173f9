"""The facts of a report: the store's records, grouped so that only times of one protocol are compared.

A section is one op on one hardware under one regime. Of each problem it shows the newest decision, and the trials under
that decision's software and protocol; trials under other software are left out, and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from tuning_db import Decision, Environment, ProblemKey, Protocol, Store, StoredRun

from .tally import Best, Tally, tally
from .work import Roof, Work, roofs_of, works_of

TORCH = "torch.native"
"""The baseline of an op that does not name one."""


@dataclass(frozen=True)
class Timed:
    """An implementation's best time on one problem; ``in_finals`` when the finals paired it with the winner's.

    ``resources`` are those of its kernel with that configuration, empty where no trial tells them.
    """

    us: float
    config: Mapping[str, Any] | None
    in_finals: bool
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemFacts:
    """One problem: its newest decision, if any, the tally of its search, and its work where that is known."""

    problem: ProblemKey
    environment: Environment
    protocol: Protocol
    decision: Decision | None
    search: Tally
    work: Work | None = None

    @cached_property
    def timed(self) -> Mapping[str, Timed]:
        """Implementation -> its best time, from the finals where it entered them, else from the search."""
        best = {name: Timed(one.us, one.config, False, one.resources) for name, one in self.search.best.items()}
        if self.decision is None or self.decision.median_us <= 0:
            return best
        winner = self.decision.candidate.implementation
        for name, ratio in self.baselines.items():
            searched = best.get(name, Timed(0.0, None, True))
            best[name] = replace(searched, us=ratio * self.decision.median_us, in_finals=True)
        config = self.decision.candidate.config
        best[winner] = Timed(self.decision.median_us, config, True, self._resources(winner, config))
        return best

    def _resources(self, implementation: str, config: Mapping[str, Any]) -> Mapping[str, int]:
        tried: Sequence[Best] = self.search.fastest.get(implementation, ())
        return next((one.resources for one in tried if one.config == config), {})

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """Implementation -> its time over the winner's, without ratios (of an import) that are not positive."""
        found = self.decision.baselines if self.decision is not None else {}
        return {name: ratio for name, ratio in found.items() if ratio > 0}

    @property
    def floor_us(self) -> float | None:
        """The floor's time in the finals."""
        floor = self.decision.floor_us if self.decision is not None else None
        return floor if floor is not None and floor > 0 else None

    @property
    def fraction_of_floor(self) -> float | None:
        """The floor's time over the winner's."""
        return None if self.decision is None or self.floor_us is None else self.decision.fraction_of_floor

    def speedup(self, implementation: str) -> float | None:
        """An implementation's time over the winner's, paired in the finals; None where it did not enter them."""
        if self.decision is None:
            return None
        if self.decision.candidate.implementation == implementation:
            return 1.0
        return self.baselines.get(implementation)


@dataclass(frozen=True)
class Section:
    """One op on one hardware under one regime."""

    op: str
    hardware: Mapping[str, Any]
    regime: str
    problems: tuple[ProblemFacts, ...]
    left_out: int
    baseline: str = TORCH
    roof: Roof | None = None

    @property
    def decided(self) -> list[ProblemFacts]:
        return [facts for facts in self.problems if facts.decision is not None]

    @property
    def trials(self) -> int:
        return sum(facts.search.trials for facts in self.problems)

    @cached_property
    def implementations(self) -> list[str]:
        """Every implementation that was tried or timed, in alphabetical order."""
        tried = {name for facts in self.problems for name, _ in facts.search.outcomes}
        won = {facts.decision.candidate.implementation for facts in self.problems if facts.decision is not None}
        return sorted(tried | won | {name for facts in self.problems for name in facts.timed})

    @cached_property
    def varying(self) -> list[str]:
        """Dimensions that differ between the problems, in the op's order."""
        return [name for name in self._dims if len(set(self._dims[name])) > 1] or list(self._dims)[:1]

    @cached_property
    def constant(self) -> Mapping[str, Any]:
        """Dimensions that all problems share."""
        first = self.problems[0].problem.dims
        return {name: first[name] for name in self._dims if name not in self.varying}

    @cached_property
    def _dims(self) -> Mapping[str, list[str]]:
        names = dict.fromkeys(name for facts in self.problems for name in facts.problem.dims)
        return {name: [repr(facts.problem.dims.get(name)) for facts in self.problems] for name in names}


@dataclass(frozen=True)
class Facts:
    """All sections of a report, and the number of trials that were left out."""

    database: str
    sections: tuple[Section, ...]
    runs: tuple[StoredRun, ...]


BaselinesOf = Callable[[Iterable[str]], Mapping[str, str]]
"""The names of the implementations that ops compare themselves with, by op."""


WorksOf = Callable[[Iterable[ProblemKey]], Mapping[str, Work]]
"""The work of problems, by their keys, for those that no run tells of."""


def _torchs(ops: Iterable[str]) -> Mapping[str, str]:
    return dict.fromkeys(ops, TORCH)


def read(
    store: Store, ops: Sequence[str] = (), baselines_of: BaselinesOf = _torchs, counted: WorksOf | None = None
) -> Facts:
    """The facts about ``ops``, or about all ops. Sections are sorted by op, hardware, regime.

    ``counted`` tells the work of problems that no run of the store tells, as runs of older versions do not.
    """
    wanted: Sequence[str | None] = list(dict.fromkeys(ops)) or [None]
    searches: list[_Counted] = []
    for op in wanted:
        with store.each_search(op=op) as found:
            searches += (_Counted(*one[:4], tally(one.attempts)) for one in found)
    regimes = sorted({search.protocol.regime for search in searches} | {"cold"})
    winners = [winner for op in wanted for regime in regimes for winner in store.winners(op=op, regime=regime)]
    sections = _sections(searches, winners)
    baselines = baselines_of({section.op for section in sections})
    stored = store.runs()
    works, roofs = works_of(stored), roofs_of(stored)
    keys = {facts.problem.key: facts.problem for section in sections for facts in section.problems}
    if counted is not None:
        works |= counted([problem for key, problem in keys.items() if key not in works])
    sections = tuple(_related(section, baselines[section.op], works, roofs) for section in sections)
    # a run knows its environment, not its ops
    shown = {facts.environment.key for section in sections for facts in section.problems}
    return Facts(store.url, sections, tuple(run for run in stored if run.environment.key in shown))


def _related(section: Section, baseline: str, works: Mapping[str, Work], roofs: Mapping[str, Roof]) -> Section:
    """The section with all that its times are compared with."""
    problems = tuple(replace(facts, work=works.get(facts.problem.key)) for facts in section.problems)
    roof = roofs.get(section.problems[0].environment.hardware_key)
    return replace(section, problems=problems, baseline=baseline, roof=roof)


class _Counted(NamedTuple):
    """A ``Search`` with its tally in place of its trials."""

    problem: ProblemKey
    environment: Environment
    protocol: Protocol
    newest: int
    search: Tally


_Place = tuple[str, str, str]


def _sections(searches: Sequence[_Counted], winners: Sequence[Decision]) -> tuple[Section, ...]:
    newest = _newest_versions([*searches, *winners])
    decisions: dict[tuple[_Place, str], Decision] = {}
    for winner in winners:  # newest first: under several versions of the software, the newest is shown
        if winner.problem.op_version == newest[winner.problem.op]:
            decisions.setdefault((_place(winner), winner.problem.key), winner)
    searched: dict[tuple[_Place, str], list[_Counted]] = defaultdict(list)
    left_out: Counter[_Place] = Counter()
    for one in searches:
        if one.problem.op_version == newest[one.problem.op]:
            searched[_place(one), one.problem.key].append(one)
        else:
            left_out[_place(one)] += one.search.trials
    places: dict[_Place, list[ProblemFacts]] = defaultdict(list)
    for place, problem in dict.fromkeys([*decisions, *searched]):
        found = searched.get((place, problem), [])
        facts = _problem_facts(decisions.get((place, problem)), found)
        left_out[place] += sum(one.search.trials for one in found) - facts.search.trials
        places[place].append(facts)
    return tuple(_section(place, places[place], left_out[place]) for place in sorted(places))


def _section(place: _Place, problems: Sequence[ProblemFacts], left_out: int) -> Section:
    ordered = sorted(problems, key=lambda facts: _order(facts.problem))
    return Section(place[0], ordered[0].environment.hardware, place[2], tuple(ordered), left_out)


def _problem_facts(decision: Decision | None, searches: Sequence[_Counted]) -> ProblemFacts:
    """The facts of one problem: of its searches, the decision's, else the one with the newest trial."""
    like = decision or max(searches, key=lambda one: one.newest)
    same = (one for one in searches if one.environment == like.environment and one.protocol == like.protocol)
    search = next((one.search for one in same), Tally())
    return ProblemFacts(like.problem, like.environment, like.protocol, decision, search)


def _newest_versions(records: Iterable[_Counted | Decision]) -> Mapping[str, int]:
    newest: dict[str, int] = {}
    for record in records:
        problem = record.problem
        newest[problem.op] = max(problem.op_version, newest.get(problem.op, problem.op_version))
    return newest


def _place(record: _Counted | Decision) -> _Place:
    return record.problem.op, record.environment.hardware_key, record.protocol.regime


def _order(problem: ProblemKey) -> tuple[tuple[bool, float, str], ...]:
    """Sort key of a problem: static dimensions first, numbers by size, so that neighbours stand together."""
    names = sorted(problem.dims, key=lambda name: name not in problem.static)
    values = [problem.dims[name] for name in names]
    return tuple(
        (isinstance(value, str), 0.0 if isinstance(value, str) else float(value), str(value)) for value in values
    )
