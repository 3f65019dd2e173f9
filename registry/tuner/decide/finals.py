"""The finals of a run: the candidates that enter, the blocks in fresh processes, the decision, its publication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol as Typed

from tuning_db import Decision, Final, Transfer

from ...dispatch.plans.plan import Candidate
from ...problem import Problem
from ..events import BlockStarted, FinalsStarted, Note, Observer, ProbesStarted, Result
from ..jobs import BlockJob, Entrant, JobAnswer, Outcome, TimedBlock, VerificationJob
from ..measure.protocol import TimingProtocol
from ..search.findings import Finding, Findings
from ..storing import RunStore
from ..verify.probe_inputs import group_of
from .contest import Contest, Met, challengers
from .contest_facts import baselines, default_ratio, disturbance, floor_us, noisy, ties, too_fast
from .judge import (
    ATTEMPTS,
    BLOCKS,
    MOST_BLOCKS,
    Verdict,
    blocks_of_each,
    judge,
    median_of,
    observed,
)
from .noise import Noise
from .results import result_of, without_winner
from .transfers import SAYS_NOTHING, TransferRunner, verified_transfers

CHANGED = "source or space changed, or gone"
"""The reason why a stored winner that could not be tried is out; ``registry results`` uses the phrase, too."""


class BlockRunner(TransferRunner, Typed):
    """Runs blocks of the finals on a worker for each device; ``workers.crew.Crew`` is one."""

    def run_blocks(self, jobs: Sequence[BlockJob | VerificationJob]) -> Sequence[JobAnswer]:
        """The answers of the jobs, in order, each from a present worker."""

    def replace_workers(self, *, last: bool) -> None:
        """Replace the workers by processes that have measured nothing; ``last``: no other replacement follows soon."""

    def dismiss_workers(self) -> None:
        """Let the workers end: no block follows soon."""


class Finals:
    """Finals of several problems together: a fresh worker runs one block of each, or several share them.

    ``noise`` is the noise that this run has seen so far (of the machine before any finals, and of earlier finals);
    these finals add to it. ``earlier`` is the noise of earlier runs, without which a run of a few problems would know
    little about its noise.
    """

    def __init__(
        self,
        store: RunStore,
        protocol: TimingProtocol,
        observer: Observer,
        noise: Noise | None = None,
        earlier: Noise | None = None,
    ) -> None:
        self._store = store
        self._protocol = protocol
        self._observe = observer
        self._contests: list[Contest] = []
        self._without: list[Findings] = []
        self._mishaps: dict[Problem, str] = {}
        self._earlier = earlier or Noise()
        self.noise = noise or Noise()

    @property
    def contests(self) -> int:
        """The number of problems whose finals are still to be decided."""
        return len(self._contests)

    @property
    def blocks(self) -> int:
        """The number of blocks of the problem that has the most."""
        return max((contest.wanted for contest in self._contests), default=0)

    def run(
        self,
        searched: Sequence[Findings],
        runner: BlockRunner,
        *,
        dismiss: bool = False,
        room_for_two: Callable[[int], bool] = lambda _: True,
    ) -> Iterator[Result]:
        """Hold the finals, publish, and return the result of each problem, one after another.

        Where another run has published meanwhile, finals against its winner follow, and where finalists were found
        wrong, finals of those behind them: three at most in all, which begin with a fresh worker. ``dismiss``: let the
        worker end after the blocks, since nothing else needs it.
        ``room_for_two``: given a number of blocks that are over, whether two more fit into the run's time.
        """
        self.prepare(searched, runner)
        for attempt in range(1, ATTEMPTS + 1):
            if any(contest.follows and contest.unprobed for contest in self._contests):
                runner.replace_workers(last=False)
                self._probe(runner)
                self._fix_blocks()
            number = 0
            while number < self.blocks:
                if BLOCKS - 1 <= number < self.blocks - 1 and not room_for_two(number):
                    self._end_after(number + 1)
                taking_part = sum(number < contest.wanted for contest in self._contests)
                self._observe(BlockStarted(number + 1, self.blocks, taking_part))
                runner.replace_workers(last=number == self.blocks - 1)
                self.block(number, runner)
                number += 1
            asks = any(contest.findings.plan.op.transfers for contest in self._contests)
            if dismiss and not asks:
                runner.dismiss_workers()
            yield from self.decide(runner, last=attempt == ATTEMPTS)
            if dismiss and asks:
                runner.dismiss_workers()
            if not self.contests:
                return

    def _end_after(self, blocks: int) -> None:
        """Have no contest more blocks: time is short, whatever they have shown."""
        self._observe(Note(f"finals end after block {blocks} of {self.blocks}: the time limit has no room for more"))
        for contest in self._contests:
            contest.end_after(blocks)

    def prepare(self, searched: Sequence[Findings], runner: BlockRunner) -> None:
        """Choose incumbents and challengers, hold the pre-final that leaves two of them, and probe those."""
        for findings in searched:
            plan = findings.plan
            incumbent = findings.incumbent()
            if incumbent is None:
                self._without.append(findings)
                continue
            previous = self._store.winner(plan.op, plan.problem)
            stored = self._store.valid(plan, previous)
            if stored is not None and not findings.fault_of(stored):
                incumbent = stored  # which another run may have published since the search began
            self._contests.append(Contest(findings, incumbent, previous, challengers(findings, incumbent)))
        contested = _longest_first(contest for contest in self._contests if contest.early_rounds)
        answers = runner.run_blocks([self._pre_final(contest) for contest in contested])
        early = dict(zip(map(id, contested), answers, strict=True))
        for contest in self._contests:
            answer = early.get(id(contest))
            faults = answer.faults if isinstance(answer, TimedBlock) else ()
            for candidate, fault in zip(contest.early_entrants(), faults, strict=False):
                if fault:
                    problem = contest.findings.plan.problem
                    self._observe(Note(f"{problem}: {candidate} is out of the pre-final: {fault}"))
            contest.meet_early(answer)
        self._probe(runner)
        self._fix_blocks()
        self._observe(FinalsStarted(self.contests, self.blocks))

    def _probe(self, runner: BlockRunner) -> None:
        """Verify the finalists whose trials left out the probes.

        One that is wrong is stored as wrong, and the next of the pre-final takes its place, or the next incumbent.
        """
        while asked := [(contest, one) for contest in self._contests for one in contest.unprobed]:
            # those that share probes one after another: they then meet one worker
            asked.sort(key=lambda pair: group_of(pair[0].findings.plan.op, pair[0].findings.plan.problem))
            self._observe(ProbesStarted(len(asked)))
            jobs = [self._verification(contest, one) for contest, one in asked]
            for (contest, candidate), answer in zip(asked, runner.run_blocks(jobs), strict=True):
                if isinstance(answer, Outcome) and answer.status not in SAYS_NOTHING | {"ok"}:
                    self._refute(contest.findings, candidate, answer)
                    told = f"{candidate} is out of the finals: {answer.status}: {answer.message}"
                    self._observe(Note(f"{contest.findings.plan.problem}: {told}"))
                else:
                    contest.findings.believe(candidate)
            for contest in {id(contest): contest for contest, _ in asked}.values():
                self._line_up(contest)

    def _refute(self, findings: Findings, candidate: Candidate, answer: Outcome) -> None:
        uid = self._store.refuted(findings.plan, candidate, answer).uid
        findings.refute(Finding(candidate, answer.status, None, False, uid, answer.message))

    def _line_up(self, contest: Contest) -> None:
        findings = contest.findings
        if findings.fault_of(contest.incumbent):
            incumbent = findings.incumbent()
            if incumbent is None:
                self._contests.remove(contest)
                self._without.append(findings)
                return
            contest.incumbent = incumbent
        contest.line_up()

    def block(self, number: int, runner: BlockRunner) -> None:
        """Run block ``number`` of every problem that has so many blocks, on the runner's present worker."""
        contests = _longest_first(contest for contest in self._contests if number < contest.wanted)
        entered = [contest.entrants(number) for contest in contests]
        jobs = [
            replace(
                self._job(contest, [entrant for _, entrant in entrants.values()], number),
                verify=contest.is_verified(number),
            )
            for contest, entrants in zip(contests, entered, strict=True)
        ]
        for contest, entrants, answer in zip(contests, entered, runner.run_blocks(jobs), strict=True):
            problem = contest.findings.plan.problem
            if not isinstance(answer, TimedBlock):
                self._mishaps[problem] = answer.message
                contest.lose(number)
                self._observe(Note(f"{problem}: finals block {number + 1} was lost: {answer.message}"))
                continue
            for name, fault in zip(entrants, answer.faults, strict=True):
                if fault:
                    self._observe(Note(f"{problem}: {name} is out of finals block {number + 1}: {fault}"))
                    contest.refuse(name, fault)
            named = dict(zip(entrants, answer.times, strict=True))
            contest.blocks.append({name: times for name, times in named.items() if times})
            contest.rows += self._rows(number, entrants, answer)

    def decide(self, runner: BlockRunner, *, last: bool = True) -> Iterator[Result]:
        """Judge every contest, verify on ``runner`` to which sizes winners transfer, and publish, one after another.

        Unless this is the ``last`` time, contests remain for which another run published first, for finals against its
        winner, and those whose finalists were found wrong, for finals of the candidates behind them.
        """
        without, self._without = self._without, []
        for findings in without:
            yield without_winner(findings, "none is right")
        contests, self._contests = self._contests, []
        for contest in contests:
            self.noise += observed(contest.incumbent.key, contest.challenged_by, contest.blocks)
        known = self._known
        judged = list[tuple[Contest, Verdict]]()
        for contest in contests:
            verdict = self._judge(contest, known)
            following = None if last else contest.follow_up(verdict.winner if isinstance(verdict, Verdict) else None)
            if following is not None:
                told = "finalists were found wrong; finals of those behind them follow"
                self._observe(Note(f"{contest.findings.plan.problem}: {told}"))
                self._contests.append(following)
            elif isinstance(verdict, str):
                yield self._undecided(contest, verdict)
            else:
                judged.append((contest, verdict))
        winners = [(contest.findings, contest.candidates[verdict.winner]) for contest, verdict in judged]
        transfers = verified_transfers(winners, self._protocol, runner, self._observe)
        for contest, verdict in judged:
            along = transfers.get(contest.findings.plan.problem, {})
            if (result := self._publish(contest, verdict, known, along, last=last)) is not None:
                yield result
        self._fix_blocks()

    @property
    def _known(self) -> Noise:
        return self._earlier + self.noise

    def _fix_blocks(self) -> None:
        durations = [contest.incumbent_us for contest in self._contests]
        for contest, count in zip(self._contests, blocks_of_each(durations, self._known), strict=True):
            contest.fix_blocks(count)

    def _judge(self, contest: Contest, noise: Noise) -> Verdict | str:
        """The verdict on a contest, or why there can be none; candidates that were found wrong are stored as wrong."""
        self._refuse_too_fast(contest)
        for candidate, outcome in contest.found_wrong:
            self._refute(contest.findings, candidate, outcome)
        if wrong := contest.refused.get(contest.incumbent.key):
            return f"its incumbent is wrong ({wrong})"
        if not contest.complete:
            mishap = self._mishaps.get(contest.findings.plan.problem, "")
            return "no finals block was completed" + (f" ({mishap})" if mishap else "")
        if contest.unverified:
            mishap = self._mishaps[contest.findings.plan.problem]
            return f"the block in which its entrants are verified was lost twice ({mishap})"
        verdict = judge(contest.incumbent.key, contest.challenged_by, contest.blocks, noise)
        return disturbance(contest, verdict.winner) or verdict

    def _publish(
        self, contest: Contest, verdict: Verdict, noise: Noise, transfers: Mapping[str, Transfer], *, last: bool
    ) -> Result | None:
        """Store the decision and return its result; None where finals against another run's winner follow."""
        why_out = self._why_out(contest)
        decision = self._decision(contest, verdict, noise, new=contest.previous is None or bool(why_out))
        decision = replace(decision, transfers=transfers)
        if self._store.publish(decision, contest.rows):
            findings, met = contest.findings, contest.met
            if why_out:
                self._observe(Note(f"{findings.plan.problem}: {why_out}"))
                met = replace(met, stored=False)
            in_noise = noisy(contest, contest.candidates[verdict.winner], noise)
            return result_of(findings.plan, decision, decision.verdict, findings.statuses, met, why_out, in_noise)
        return self._overtaken(contest, decision, contest.candidates[verdict.winner], last=last)

    def _refuse_too_fast(self, contest: Contest) -> None:
        """Refuse challengers that did less work in the finals than in the search; keeping an incumbent is no risk."""
        for name in contest.challenged_by:
            if fault := too_fast(contest, name):
                self._observe(Note(f"{contest.findings.plan.problem}: {name} is out of the finals: {fault}"))
                contest.refused[name] = fault

    def _overtaken(self, contest: Contest, decision: Decision, winner: Candidate, *, last: bool) -> Result | None:
        """Handle a winner published by another run: the agreed result, or None if finals against it must follow."""
        plan, statuses = contest.findings.plan, contest.findings.statuses
        stored = self._store.winner(plan.op, plan.problem)
        if stored is None:
            return self._undecided(contest, "its winner was not stored, although nobody else published one")
        if last or stored.candidate == decision.candidate:
            if stored.candidate != decision.candidate:
                self._observe(Note(f"{plan.problem}: another run published first once more; its winner stays"))
            return result_of(plan, stored, "kept", statuses)
        self._observe(Note(f"{plan.problem}: another run published first; finals against its winner follow"))
        self._contests.append(contest.against(self._store.valid(plan, stored), stored, winner))
        return None

    def _why_out(self, contest: Contest) -> str:
        """Why the stored winner did not take part; "" where it is the incumbent, or where nothing is stored."""
        previous, plan = contest.previous, contest.findings.plan
        if previous is None:
            return ""
        stored = self._store.valid(plan, previous)
        if stored is not None and stored.key == contest.incumbent.key:
            return ""
        fault = CHANGED if stored is None else contest.findings.fault_of(stored) or "it was not tried"
        return f"the stored winner {previous.candidate.implementation} was out: {fault}"

    def _decision(self, contest: Contest, verdict: Verdict, noise: Noise, *, new: bool) -> Decision:
        winner = contest.candidates[verdict.winner]
        previous = contest.previous
        verified, kernels = contest.findings.uid(winner), None
        if verified is None and previous is not None and winner.key == contest.incumbent.key:
            # the kernels are as the decision tells them: an older version's trial has another kind of hash
            verified, kernels = previous.trial_uid, previous.artifact_hash
        return self._store.decision(
            contest.findings.plan,
            winner,
            median_us=median_of(winner.key, contest.blocks),
            floor_us=floor_us(contest),
            ratio=verdict.ratio.value,
            lo=verdict.ratio.low,
            hi=verdict.ratio.high,
            aa=verdict.noise,
            verdict="new" if new else verdict.verdict,
            baselines=baselines(contest, winner),
            default_ratio=default_ratio(contest, winner, noise),
            ties=tuple(ties(contest, verdict)),
            trial_uid=verified,
            artifact_hash=kernels,
            previous=previous.uid if previous else None,
        )

    def _undecided(self, contest: Contest, why: str) -> Result:
        findings = contest.findings
        self._observe(Note(f"{findings.plan.problem}: {why}; run again to decide"))
        return without_winner(findings, f"undecided: {why}")

    def _pre_final(self, contest: Contest) -> BlockJob:
        entrants = [contest.findings.entrant(candidate) for candidate in contest.early_entrants()]
        # a seed of its own: behind the last block may come one more
        return replace(self._job(contest, entrants, MOST_BLOCKS + 1), rounds=contest.early_rounds, verify=False)

    def _verification(self, contest: Contest, candidate: Candidate) -> VerificationJob:
        plan, findings = contest.findings.plan, contest.findings
        dims, protocol = dict(plan.problem.dims), dict(self._protocol.details)
        return VerificationJob(0, plan.op.name, dims, findings.entrant(candidate), protocol, findings.seed)

    def _job(self, contest: Contest, entrants: Sequence[Entrant], seed: int) -> BlockJob:
        plan = contest.findings.plan
        return BlockJob(
            0, plan.op.name, dict(plan.problem.dims), tuple(entrants), dict(self._protocol.details),
            contest.findings.seed + seed, contest.rounds,
        )  # fmt: skip

    def _rows(self, block: int, entered: Met, answer: TimedBlock) -> list[Final]:
        return [
            self._store.final(candidate, role=entrant.role, block=block, round=turn, position=position, us=us)
            for (candidate, entrant), times, positions in zip(
                entered.values(), answer.times, answer.positions, strict=True
            )
            for turn, (us, position) in enumerate(zip(times, positions, strict=True))
        ]


def _longest_first(contests: Iterable[Contest]) -> list[Contest]:
    """Contests in the order in which several workers are dealt them, so that they end at about the same time."""
    return sorted(contests, key=lambda contest: contest.incumbent_us, reverse=True)
