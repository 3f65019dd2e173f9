"""One problem in the finals: its incumbent and challengers, their times, and the facts that a decision stores."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuning_db import Decision, Final

from ...dispatch.plans.plan import Candidate
from ..events import Incumbent
from ..jobs import Entrant, JobAnswer, Outcome, Status, TimedBlock
from ..limits import PRE_FINALISTS
from ..search.findings import Findings
from .judge import (
    BLOCKS,
    FINALISTS,
    INCUMBENT_COPY,
    MOST_BLOCKS,
    PRE_ROUNDS,
    ROUNDS,
    fastest,
)

FLOOR = "floor"
NEAR = 1.1
"""Times the fastest of the search: a candidate that is farther does not enter.

The search's times are within 0.7% of the finals' for half of the candidates, and 14% off for one in a hundred."""
_PRE_FINAL_SHARE = 0.3
"""The part of a problem's seconds that its pre-final may take."""
_LEAST_EARLY = 3
"""The fewest rounds of a pre-final: fewer tell no more than the samples of the search."""
FAR = 1.5
"""A candidate slower than this many times the fastest is compared by the search alone, not in a pre-final."""
_WRONG: tuple[Status, ...] = ("wrong_result", "nondeterministic")
"""Prefixes of the faults of entrants whose own outputs were found wrong."""
_ERROR: Status = "error"
"""Prefix of the faults of entrants that may not win, one of which may have been another's: a process that somebody has
changed says this of all who were in it."""

Met = Mapping[str, tuple[Candidate | None, Entrant]]
"""Entrants of a block by name, in the order in which the worker sets them up; the copy floor has no candidate."""


@dataclass
class Contest:
    """The incumbent and the challengers of one problem, and their blocks so far."""

    findings: Findings
    incumbent: Candidate
    previous: Decision | None
    challengers: list[Candidate]
    wanted: int = MOST_BLOCKS
    """The number of blocks of this contest, fixed before the first block is timed; fewer where time is short."""
    rounds: int = ROUNDS
    """The number of rounds of a block, fixed with that of the blocks."""
    rows: list[Final] = field(default_factory=list)
    blocks: list[dict[str, tuple[float, ...]]] = field(default_factory=list)
    early: dict[str, tuple[float, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Name of an entrant that was found wrong in some block -> its fault."""
    follows: bool = False
    """Whether it follows a contest whose finalists were found wrong: those behind them may not have met all probes."""
    verified: int = 0
    """The block after which entrants are verified, where that is one alone.

    It is drawn: code that counts its processes, to be honest in that one, cannot know which it is."""
    unverified: bool = False
    """Whether that block was lost, and the one that took its place, so that nobody was verified."""
    _fixed: int = 0
    """The number of blocks without one that takes the place of a lost one."""
    _ranking: list[Candidate] = field(default_factory=list)
    """Candidates that may challenge after the pre-final, fastest first."""

    def early_entrants(self) -> list[Candidate]:
        """Entrants of the pre-final: the challengers, the incumbent, and the best candidate of every implementation.

        The latter enter so that the ratios to all implementations are known. A candidate that took more than 1.5 times
        the fastest time in the search stays out: its ratio comes from the search.
        """
        times = {one.key: self.findings.median_us(one.key) or math.inf for one in self.findings.best_of_each()}
        near = FAR * min(times.values(), default=math.inf)
        best = [one for one in self.findings.best_of_each() if times[one.key] <= near]
        everybody = [*self.challengers, self.incumbent, *best]
        return list({candidate.key: candidate for candidate in everybody}.values())

    @property
    def is_long(self) -> bool:
        """Whether to verify takes longer than a block's rounds: entrants are then verified in one block only."""
        return self.findings.plan.is_large or self.rounds < ROUNDS

    @property
    def early_rounds(self) -> int:
        """The number of rounds of the pre-final; 0: there is none, since it would take too long or has one entrant."""
        entrants = self.early_entrants()
        rounds = _rounds_within(_PRE_FINAL_SHARE * self.findings.seconds, self._us_of(entrants), PRE_ROUNDS)
        return rounds if len(entrants) > 1 and rounds >= _LEAST_EARLY else 0

    def fix_blocks(self, blocks: int) -> None:
        """Fix the number of blocks, and of rounds: as many as fit into the seconds of the problem.

        Where not even one round fits, the fastest challenger alone takes part, in three blocks of one round at least.
        """
        self.wanted, self.rounds = blocks, self._rounds_in(blocks)
        if self.rounds < 1:
            del self.challengers[1:]
            self.wanted, self.rounds = BLOCKS, max(1, self._rounds_in(BLOCKS))
        self.verified = secrets.randbelow(self.wanted)
        self._fixed = self.wanted

    def end_after(self, blocks: int) -> None:
        """Have no more blocks than these, the last of which was not begun."""
        self.wanted = min(self.wanted, blocks)
        self.verified = min(self.verified, self.wanted - 1)

    def is_verified(self, block: int) -> bool:
        """Whether the entrants of a block are verified in it."""
        return not self.is_long or block == self.verified

    def lose(self, block: int) -> None:
        """Verify in a later block what should have been verified in one that was lost; behind the last, in one more."""
        if not self.is_long or self.verified != block:
            return
        if block < self.wanted - 1:
            self.verified = block + 1 + secrets.randbelow(self.wanted - 1 - block)
        elif self.wanted <= self._fixed:
            self.wanted += 1
            self.verified = block + 1
        else:
            self.unverified = True

    def _rounds_in(self, blocks: int) -> int:
        us = self._us_of([self.incumbent, *self.candidates.values()])
        return _rounds_within(self.findings.seconds / blocks, us, ROUNDS)

    def _us_of(self, entrants: Sequence[Candidate]) -> float:
        return sum(self.findings.median_us(one.key) or self.incumbent_us for one in entrants)

    def meet_early(self, answer: JobAnswer | None) -> None:
        """Take in the pre-final, which ranks the challengers, and line them up.

        Where it was lost, or not held (None), the search ranks them, without those that were far behind.
        """
        if isinstance(answer, TimedBlock):
            entered = zip(self.early_entrants(), answer.times, strict=True)
            self.early = {candidate.key: times for candidate, times in entered if times}
        named = {candidate.key: candidate for candidate in self.challengers}
        if self.early:
            times = {name: self.early.get(name, ()) for name in named}
            self._ranking = [named[name] for name in fastest(times, keep=len(named))]
        else:
            limit = NEAR * (self.findings.best_us or 0.0)
            near = [one for one in self.challengers if (self.findings.median_us(one.key) or 0.0) <= limit]
            self._ranking = near or self.challengers[:1]
        self.line_up()

    def line_up(self) -> None:
        """Let the fastest two that are right challenge, and the default, if it is not the incumbent."""
        right = [one for one in self._ranking if self.findings.is_right(one) and one.key != self.incumbent.key]
        self.challengers = right[:FINALISTS]
        default = self.findings.default()
        if default is not None and default.key not in self.candidates:
            self.challengers.append(default)

    @property
    def unprobed(self) -> list[Candidate]:
        """The candidates that take part and that this run has not met with all probes."""
        return [one for one in self.candidates.values() if not self.findings.is_probed(one)]

    def entrants(self, block: int) -> Met:
        """Entrants of a block: the incumbent twice, the challengers, and in the first block the copy floor.

        Their order differs from block to block: memory that is allocated in one order would lie at the same addresses
        in every process.
        """
        findings = self.findings
        entrants: dict[str, tuple[Candidate | None, Entrant]] = {
            self.incumbent.key: (self.incumbent, findings.entrant(self.incumbent)),
            INCUMBENT_COPY: (self.incumbent, findings.entrant(self.incumbent, "copy")),
        }
        for candidate in self.challengers:
            entrants.setdefault(candidate.key, (candidate, findings.entrant(candidate)))
        if block == 0:
            entrants[FLOOR] = (None, Entrant("", {}, (), "floor"))
        names = list(entrants)
        random.Random(f"{findings.seed} {block}").shuffle(names)
        return {name: entrants[name] for name in names}

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        return {self.incumbent.key: self.incumbent, **{one.key: one for one in self.challengers}}

    @property
    def challenged_by(self) -> list[str]:
        """The names in the blocks of the challengers that were not found wrong."""
        return [candidate.key for candidate in self.challengers if candidate.key not in self.refused]

    def refuse(self, name: str, fault: str) -> None:
        """Refuse an entrant that was found wrong in a block, however fast in other blocks.

        A fault such as a full memory refuses no entrant: it says nothing about the candidate. Nor does one of the copy
        floor, which is no candidate.
        """
        if fault.startswith((*_WRONG, _ERROR)) and name != FLOOR:
            self.refused[self.incumbent.key if name == INCUMBENT_COPY else name] = fault

    @property
    def incumbent_us(self) -> float:
        """The incumbent's time in the search, else in the finals after which it was stored."""
        searched = self.findings.median_us(self.incumbent.key)
        if searched is None and self.previous is not None:
            return self.previous.median_us
        assert searched is not None
        return searched

    @property
    def complete(self) -> bool:
        """Whether some block timed both the incumbent and its copy, which shows the noise."""
        return any({self.incumbent.key, INCUMBENT_COPY} <= block.keys() for block in self.blocks)

    @property
    def met(self) -> Incumbent:
        """The incumbent as results and events show it."""
        name, config = self.incumbent.implementation.name, dict(self.incumbent.config)
        before = self.previous.candidate if self.previous else None
        return Incumbent(
            name, config, before is not None and (before.implementation, dict(before.config)) == (name, config)
        )

    @property
    def found_wrong(self) -> Iterator[tuple[Candidate, Outcome]]:
        """The candidates whose outputs a block found wrong, as outcomes of trials.

        Neither too little time nor an error is told: the first proves nothing, and the second may be another's.
        """
        for key, fault in self.refused.items():
            status = next((status for status in _WRONG if fault.startswith(status)), None)
            if status is not None:
                yield self.candidates[key], Outcome(status, fault.removeprefix(status).removeprefix(": "))

    def follow_up(self, winner: str | None) -> Contest | None:
        """The contest that follows where finalists were refused; None where nobody is left who might win it.

        With the next incumbent, if its outputs were wrong; else with those that the search found faster than the
        ``winner`` (None: nobody won). Errors are followed by none: run again.
        """
        findings, incumbent = self.findings, self.incumbent
        if incumbent.key in self.refused:
            behind = findings.incumbent()
            if behind is None or self.refused[incumbent.key].startswith(_ERROR):
                return None
            incumbent = behind
        elif winner is None or all(fault.startswith(_ERROR) for fault in self.refused.values()):
            return None
        left = [one for one in challengers(findings, incumbent) if one.key not in self.refused]
        if incumbent is self.incumbent and winner is not None:
            won_us = findings.median_us(winner) or self.incumbent_us
            unmet = [one for one in left if one.key not in self.candidates]
            if not any((findings.median_us(one.key) or math.inf) < won_us for one in unmet):
                return None
        following = Contest(findings, incumbent, self.previous, left, follows=True)
        following.meet_early(None)
        return following

    def against(self, incumbent: Candidate | None, previous: Decision, winner: Candidate) -> Contest:
        """The contest that follows when another run has published a decision meanwhile.

        This contest's winner and the default meet the new ``incumbent``, or the old one where the new one cannot run
        here any more (None).
        """
        holder = incumbent or self.incumbent
        default = self.findings.default()
        wanted = [winner, *([default] if default else [])]
        challengers = {candidate.key: candidate for candidate in wanted if candidate.key != holder.key}
        return Contest(self.findings, holder, previous, list(challengers.values()))


def challengers(findings: Findings, incumbent: Candidate) -> list[Candidate]:
    """Candidates near the fastest of the search, fastest first: two (if there are two) to eight."""
    ranked = [candidate for candidate in findings.ranked() if candidate.key != incumbent.key]
    limit = NEAR * (findings.best_us or 0.0)
    near = sum((findings.median_us(candidate.key) or 0.0) <= limit for candidate in ranked)
    return ranked[: max(FINALISTS, min(near, PRE_FINALISTS))]


def _rounds_within(seconds: float, us: float, most: int) -> int:
    return min(most, int(seconds * 1e6 / us))
