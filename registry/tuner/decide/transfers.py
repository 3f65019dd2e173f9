"""Whether a problem's winner may answer for other sizes of static dimensions: asked of a worker before it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol as Typed

from tuning_db import Transfer
from tuning_db.records import transfers_of

from ...dispatch.plans.plan import Candidate
from ..events import Note, Observer
from ..jobs import Answer, Outcome, TransferJob
from ..measure.protocol import TimingProtocol
from ..search.findings import Findings

_SAYS_NOTHING = frozenset({"out_of_memory", "unsupported", "compile_error", "out_of_resources"})
"""Statuses of one that dispatch will not run there either, or that the machine was too small to see."""


class TransferRunner(Typed):
    """Does such jobs on a worker; ``workers.crew.Crew`` is one."""

    def run_blocks(self, jobs: Sequence[TransferJob]) -> Sequence[Answer]:
        """The answers of the jobs, in order."""


def verified_transfers(
    findings: Findings, winner: Candidate, protocol: TimingProtocol, runner: TransferRunner, observe: Observer
) -> Mapping[str, Transfer]:
    """Where a problem's winner was seen to be right at other sizes, by static dimension; tells why it was nowhere.

    Of one that failed altogether at another size it is known that it must not run there.
    """
    op, problem = findings.plan.op, findings.plan.problem
    if not op.transfers or not winner.implementation.transfers:
        return {}
    entrant = findings.entrant(winner)
    job = TransferJob(0, op.name, dict(problem.dims), entrant, dict(protocol.details), findings.seed)
    (answer,) = runner.run_blocks([job])
    assert isinstance(answer, Outcome)
    if answer.message:
        observe(Note(f"{problem}: {winner} answers for no other size: {answer.message}"))
    if answer.status == "ok":
        return transfers_of({name: answer.details[name] for name in op.transfers if name in answer.details})
    own = {name: int(problem.dims[name]) for name in op.transfers}
    return {} if answer.status in _SAYS_NOTHING else {name: Transfer(size, size) for name, size in own.items()}
