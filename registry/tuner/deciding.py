"""The finals of a run: who enters, the blocks in fresh processes, the decision and its publication."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tuning_db import Decision, Final

from ..device import Device
from ..dispatch.plan import Candidate
from .children import Answer
from .events import FinalsStarted, Note, Observer, Result
from .finals import (
    BLOCKS,
    INCUMBENT_COPY,
    ROUNDS,
    Times,
    Verdict,
    aa_noise,
    judge,
    same_candidate_pairs,
    time_ratio,
)
from .jobs import BlockJob, Entrant, Timed
from .planning import ProblemPlan
from .problem_search import FINALISTS, PRE_FINALISTS, ProblemSearch
from .protocol import Protocol
from .recording import Recorder

RunBlocks = Callable[[Sequence[BlockJob]], Sequence[Answer]]

_FLOOR = "floor"
_DISTURBED = 5.0
"""Finals that take so many times what the search took say more about the machine than about the candidates."""


@dataclass
class _Final:
    """One problem in the finals."""

    search: ProblemSearch
    incumbent: Candidate
    previous: Decision | None
    challengers: list[Candidate]
    rows: list[Final] = field(default_factory=list)
    blocks: list[dict[str, tuple[float, ...]]] = field(default_factory=list)

    def entrants(self, block: int) -> dict[str, tuple[Candidate | None, Entrant]]:
        """Who enters a block: the incumbent twice, the challengers, the copy floor; in the first also the best of
        every other implementation, so that ratios to all of them are known."""
        search = self.search
        entrants: dict[str, tuple[Candidate | None, Entrant]] = {
            self.incumbent.key: (self.incumbent, search.entrant(self.incumbent)),
            INCUMBENT_COPY: (self.incumbent, search.entrant(self.incumbent, "copy")),
            _FLOOR: (None, Entrant("", {}, (), "floor")),
        }
        others = search.best_of_each() if block == 0 else []
        for candidate in [*self.challengers, *others]:
            entrants.setdefault(candidate.key, (candidate, search.entrant(candidate)))
        return entrants

    def disturbance(self, winner: str) -> str:
        """Why the finals cannot be believed, "" when they can: something else kept the device busy."""
        searched, decided = self.search.median_us(winner), _median(winner, self.blocks)
        if searched is None or decided < _DISTURBED * searched:
            return ""
        return f"its finals were disturbed: {decided:.4g} µs for what took {searched:.4g} µs in the search"


class Deciding:
    """Finals of several problems together: a fresh worker runs one block of each."""

    blocks = BLOCKS

    def __init__(self, recorder: Recorder, device: Device, protocol: Protocol, observer: Observer) -> None:
        self._recorder = recorder
        self._device = device
        self._protocol = protocol
        self._observe = observer
        self._finals: list[_Final] = []
        self._lost: list[ProblemSearch] = []

    @property
    def finals(self) -> int:
        """Problems that have somebody to decide about."""
        return len(self._finals)

    def prepare(self, searches: Sequence[ProblemSearch], run_blocks: RunBlocks) -> None:
        """Choose incumbents and challengers; more than a few challengers first meet in a pre-final."""
        for search in searches:
            plan = search.plan
            previous = self._recorder.winner(plan.op, plan.problem)
            incumbent = search.incumbent()
            if incumbent is None:
                self._lost.append(search)
                continue
            challengers = [candidate for candidate in search.ranked() if candidate.key != incumbent.key]
            self._finals.append(_Final(search, incumbent, previous, challengers[:PRE_FINALISTS]))
        crowded = [final for final in self._finals if len(final.challengers) > FINALISTS]
        jobs = [
            self._job(final, [final.search.entrant(candidate) for candidate in final.challengers], BLOCKS)
            for final in crowded
        ]
        for final, answer in zip(crowded, run_blocks(jobs), strict=True):
            final.challengers = _fastest(final.challengers, answer)
        for final in self._finals:
            default = final.search.default()
            if default is not None and default.key not in {
                final.incumbent.key,
                *(one.key for one in final.challengers),
            }:
                final.challengers.append(default)
        self._observe(FinalsStarted(len(self._finals), self.blocks))

    def block(self, number: int, run_blocks: RunBlocks) -> None:
        """One block of every problem, on the worker that ``run_blocks`` uses."""
        entrants = [final.entrants(number) for final in self._finals]
        jobs = [
            self._job(final, [entrant for _, entrant in entered.values()], number)
            for final, entered in zip(self._finals, entrants, strict=True)
        ]
        for final, entered, answer in zip(self._finals, entrants, run_blocks(jobs), strict=True):
            if not isinstance(answer, Timed):
                self._observe(
                    Note(f"{final.search.plan.problem}: finals block {number + 1} was lost: {answer.message}")
                )
                continue
            for name, fault in zip(entered, answer.faults, strict=True):
                if fault:
                    self._observe(
                        Note(f"{final.search.plan.problem}: {name} is out of finals block {number + 1}: {fault}")
                    )
            named = dict(zip(entered, answer.times, strict=True))
            final.blocks.append({name: times for name, times in named.items() if times})
            final.rows += self._rows(number, entered, answer)

    def decide(self) -> Iterator[Result]:
        """Judge every problem, publish, and say what became of each, one after another."""
        pairs = [pair for final in self._finals for pair in same_candidate_pairs(final.incumbent.key, final.blocks)]
        for final in self._finals:
            yield self._decide(final, pairs)
        for search in self._lost:
            yield Result(search.plan.problem, "", {}, None, search.floor_us, {}, "none", search.statuses)

    def _decide(self, final: _Final, pairs: Sequence[tuple[float, float]]) -> Result:
        incumbent = final.incumbent.key
        if not any({incumbent, INCUMBENT_COPY} <= block.keys() for block in final.blocks):
            return self._undecided(final, "no finals block was completed")
        noise = aa_noise(pairs, _median(incumbent, final.blocks))
        verdict = judge(incumbent, [candidate.key for candidate in final.challengers], final.blocks, noise)
        if disturbed := final.disturbance(verdict.winner):
            return self._undecided(final, disturbed)
        decision = self._decision(final, verdict)
        if not self._recorder.publish(decision, final.rows):
            self._observe(Note(f"{final.search.plan.problem}: another run published first; its winner stays"))
            stored = self._recorder.winner(final.search.plan.op, final.search.plan.problem)
            return result_of(final.search.plan, stored or decision, "kept", final.search.statuses)
        return result_of(final.search.plan, decision, decision.verdict, final.search.statuses)

    def _decision(self, final: _Final, verdict: Verdict) -> Decision:
        candidates = {final.incumbent.key: final.incumbent, **{one.key: one for one in final.challengers}}
        winner = candidates[verdict.winner]
        floors = [us for block in final.blocks for us in block.get(_FLOOR, ())]
        return self._recorder.decision(
            final.search.plan,
            winner,
            median_us=_median(winner.key, final.blocks),
            floor_us=statistics.median(floors) if floors else None,
            ratio=verdict.ratio.value,
            lo=verdict.ratio.low,
            hi=verdict.ratio.high,
            aa=verdict.noise,
            verdict=verdict.verdict if final.previous else "new",
            baselines=_baselines(final, winner),
            trial_uid=final.search.uid(winner),
            previous=final.previous.uid if final.previous else None,
        )

    def _undecided(self, final: _Final, why: str) -> Result:
        plan = final.search.plan
        self._observe(Note(f"{plan.problem}: {why}; run again to decide"))
        return Result(plan.problem, "", {}, None, final.search.floor_us, {}, "none", final.search.statuses)

    def _job(self, final: _Final, entrants: Sequence[Entrant], seed: int) -> BlockJob:
        plan = final.search.plan
        return BlockJob(
            0, plan.op.name, dict(plan.problem.dims), tuple(entrants), dict(self._protocol.details),
            final.search.seed + seed, ROUNDS,
        )  # fmt: skip

    def _rows(self, block: int, entered: dict[str, tuple[Candidate | None, Entrant]], answer: Timed) -> list[Final]:
        return [
            self._recorder.final(candidate, role=entrant.role, block=block, round=turn, position=position, us=us)
            for (candidate, entrant), times, positions in zip(
                entered.values(), answer.times, answer.positions, strict=True
            )
            for turn, (us, position) in enumerate(zip(times, positions, strict=True))
        ]


def result_of(plan: ProblemPlan, decision: Decision, verdict: str, statuses: Counter[str] | None = None) -> Result:
    """A stored decision as the closing table shows it."""
    return Result(
        plan.problem,
        decision.candidate.implementation,
        decision.candidate.config,
        decision.median_us,
        decision.floor_us,
        decision.baselines,
        verdict,
        statuses or Counter(),
    )


def _fastest(candidates: Sequence[Candidate], answer: Answer) -> list[Candidate]:
    if not isinstance(answer, Timed):
        return list(candidates[:FINALISTS])
    timed = [(statistics.median(times), place) for place, times in enumerate(answer.times) if times]
    return [candidates[place] for _, place in sorted(timed)[:FINALISTS]]


def _median(name: str, blocks: Sequence[Times]) -> float:
    return statistics.median(us for block in blocks for us in block.get(name, ()))


def _baselines(final: _Final, winner: Candidate) -> dict[str, float]:
    """Per other implementation its best candidate's time over the winner's, paired by rounds."""
    ratios: dict[str, float] = {}
    entered = [final.incumbent, *final.challengers, *final.search.best_of_each()]
    named = {candidate.key: candidate for candidate in entered}
    for key, candidate in named.items():
        name = candidate.implementation.name
        if name == winner.implementation.name or not any({key, winner.key} <= block.keys() for block in final.blocks):
            continue
        ratio = time_ratio(key, winner.key, final.blocks, 0.05).value
        ratios[name] = min(ratio, ratios.get(name, ratio))
    return ratios
