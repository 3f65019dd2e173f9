"""Verifies on a worker whether winners may answer for other sizes of static dimensions, before they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Typed

from tuning_db import Transfer

from ...artifact import Artifact, Variant
from ...dispatch.plans.plan import Candidate
from ...implementation import Implementation
from ...problem import Problem
from ..events import Note, Observer, TransfersStarted
from ..jobs import JobAnswer, Outcome, VerificationJob
from ..measure.protocol import TimingProtocol
from ..planning.transfer_codes import TransferCode, transfer_codes
from ..search.findings import Findings

SAYS_NOTHING = frozenset({"out_of_memory", "unsupported", "compile_error", "out_of_resources"})
"""Statuses that show no wrong result: dispatch would not run the candidate either, or memory was too small."""

TransferCheck = tuple[str, Problem]
"""The key of a candidate and a problem to verify it on: one check serves all winners that ask for it."""


class TransferRunner(Typed):
    """Compiles variants, and runs transfer jobs on a worker; ``workers.crew.Crew`` is one."""

    def built(self, wanted: Sequence[tuple[Implementation, Variant]]) -> Mapping[str, Artifact]:
        """The artifacts of variants by key; variants that do not compile are left out."""

    def run_blocks(self, jobs: Sequence[VerificationJob]) -> Sequence[JobAnswer]:
        """The answers of the jobs, in order."""


@dataclass(frozen=True)
class _Question:
    """The question whether a problem's winner may answer for other sizes of the dimension ``name``, by these codes."""

    findings: Findings
    winner: Candidate
    name: str
    codes: Sequence[TransferCode]

    @property
    def variants(self) -> list[Variant]:
        return [variant for code in self.codes for variant in code.variants]

    @property
    def own(self) -> int:
        return int(self.findings.plan.problem.dims[self.name])


def verified_transfers(
    winners: Iterable[tuple[Findings, Candidate]], protocol: TimingProtocol, runner: TransferRunner, observe: Observer
) -> Mapping[Problem, Mapping[str, Transfer]]:
    """The sizes at which the winners of problems were verified, by static dimension.

    An event tells why a winner was right nowhere else. A winner that failed at another size is stored with its own size
    only.
    """
    questions = [question for findings, winner in winners for question in _questions(findings, winner, observe)]
    if not questions:
        return {}
    artifacts = runner.built(
        [
            (each.winner.implementation, variant)
            for each in questions
            for code in each.codes
            for variant in code.variants
        ]
    )
    jobs = _jobs(questions, protocol, artifacts)
    observe(TransfersStarted(len(questions), len(jobs)))
    answers = dict(zip(jobs, runner.run_blocks(list(jobs.values())), strict=True))
    found: dict[Problem, dict[str, Transfer]] = {}
    for question in questions:
        transfer, why = _answered(question, answers)
        if why:
            observe(_none(question.findings, question.winner, why))
        if transfer is not None:
            found.setdefault(question.findings.plan.problem, {})[question.name] = transfer
    return found


def _questions(findings: Findings, winner: Candidate, observe: Observer) -> Iterable[_Question]:
    plan = findings.plan
    for name in plan.op.transfers if winner.implementation.transfers else ():
        try:
            codes, why = transfer_codes(name, plan.op, winner, plan.problem, plan.device)
        except Exception as fault:  # a stranger's code, asked about sizes that it may not have thought of
            codes, why = [], f"{type(fault).__name__}: {fault}"
        if why:
            observe(_none(findings, winner, why))
        else:
            yield _Question(findings, winner, name, codes)


def _none(findings: Findings, winner: Candidate, why: str) -> Note:
    return Note(f"{findings.plan.problem}: {winner} answers for no other size: {why}")


def _jobs(
    questions: Sequence[_Question], protocol: TimingProtocol, artifacts: Mapping[str, Artifact]
) -> dict[TransferCheck, VerificationJob]:
    """One job for each check; the checks of one problem follow each other, so that they share its inputs.

    What is compiled, and has met the probes of other sizes at its own size, meets those of its layouts alone.
    """
    jobs: dict[TransferCheck, VerificationJob] = {}
    for question in questions:
        entrant = question.findings.entrant(question.winner)
        built = {variant.key for variant in question.variants} & artifacts.keys()
        known = dict(entrant.by_key) | {key: artifacts[key] for key in built}
        entrant = replace(entrant, artifacts=tuple(known.values()))
        op = question.findings.plan.op.name
        details = dict(protocol.details)
        for code in question.codes:
            for problem in code.problems:
                job = VerificationJob(0, op, dict(problem.dims), entrant, details, 0, of_own_size=bool(code.variants))
                jobs.setdefault((question.winner.key, problem), job)
    return dict(sorted(jobs.items(), key=lambda job: job[0][1].key))


def _answered(question: _Question, answers: Mapping[TransferCheck, JobAnswer]) -> tuple[Transfer | None, str]:
    """The transfer of a winner, None if nothing is known of it; and why it does not transfer, "" if it does."""
    right: list[TransferCode] = []
    unseen = ""
    for code in question.codes:
        outcomes = [answers[question.winner.key, problem] for problem in code.problems]
        failed = [
            (size, outcome)
            for size, outcome in zip((code.low, code.high), outcomes, strict=True)
            if isinstance(outcome, Outcome) and outcome.status != "ok"
        ]
        if not failed:
            right.append(code)
        for size, outcome in failed:
            told = f"{question.name}={size}: {outcome.status}: {outcome.message}"
            if outcome.status not in SAYS_NOTHING:
                return Transfer(question.own, question.own), told
            unseen = unseen or told
    if not right:
        return None, unseen
    codes = tuple(sorted(code.code for code in right))
    return Transfer(min(code.low for code in right), max(code.high for code in right), codes), ""
