"""``registry winners``: the candidates that calls run on this device, their origins and prepared bytes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuning_db import MissingDatabaseError

from ..errors import RegistryError
from .display import text
from .display.table import Column, print_problems
from .options import Database, DeviceName, Json, Plugins, SeveralOps, catalog_with, device_of, split
from .results import FIGURES, figures, winner_data
from .stored import baselines_of, prepared_by, prepared_limit

if TYPE_CHECKING:
    from tuning_db import Decision

    from ..device import Device
    from ..discovery.catalog import Catalog
    from ..dispatch.resolve.resolution import Choice
    from ..dispatch.resolve.situation import Situation
    from ..problem import Problem

_COLUMNS = (
    Column("winner"),
    Column("config"),
    *FIGURES,
    Column("source", lifts=True, label="source"),
    Column("instead of", label="instead of"),
    Column("prepares", label="prepares"),
)


@dataclass(frozen=True)
class Answer:
    """The candidate that a call of a problem runs.

    ``source``: "database" or "shipped" for a winner of exactly this problem, with its figures in ``decision``; else
    "nearest", "learnt default", "default" or "reference", and ``missed`` says why the problem's winner does not hold.
    """

    problem: Problem
    choice: Choice
    source: str
    decision: Decision | None
    missed: str
    prepared_bytes: int | None

    @property
    def implementation(self) -> str:
        """The name of the implementation that runs; "reference" for torch's."""
        return "reference" if self.choice.candidate is None else self.choice.candidate.implementation.name

    @property
    def config(self) -> Mapping[str, object]:
        """The configuration of the candidate that runs."""
        return {} if self.choice.candidate is None else self.choice.candidate.config


def winners(
    op: SeveralOps = None, device: DeviceName = None, plugin: Plugins = None, db: Database = None, json: Json = False
) -> None:
    """List the candidates that calls run on this device.

    For each problem that has a winner for this hardware, of your database or shipped: the candidate that a call runs,
    its figures as in `results`, its source, and the bytes that it prepares for one set of weights. If the winner does
    not hold (its source has changed, it is not installed), the candidate that runs instead.

    Nothing is compiled or run. `results` lists all measured results, on any hardware.
    """
    catalog, there = catalog_with(plugin), device_of(device)
    ops = [catalog.op(name).name for name in split("--op", op)]
    known = {uid: one for uid, one in _decisions(db, there).items() if not ops or one.problem.op in ops}
    unposed: list[str] = []
    answers = list(_answers(known, catalog, there, db, unposed))
    if json:
        text.print_json([_data(answer) for answer in answers])
        return
    if answers:
        baselines = baselines_of(known[uid].problem.op for uid in known)
        print_problems(_COLUMNS, [(answer.problem, _row(answer, baselines[answer.problem.op])) for answer in answers])
        text.say()
    for line in unposed:
        text.say(f"unknown here: {line}")
    text.say(_total(answers, there))
    text.say(f"prepared weights hold {prepared_limit(there)}")


def _decisions(db: str | None, device: Device) -> dict[str, Decision]:
    """The winners for the device's hardware that dispatch knows, from the database and shipped, by id."""
    from tuning_db import Store

    from .. import shipped
    from ..dispatch.resolve.winners import REGIME

    found = list(shipped.shipped(device.hardware(), REGIME))
    with contextlib.suppress(MissingDatabaseError), Store.open(db, create=False, migrate=False) as store:
        found += store.winners(hardware=device.hardware(), regime=REGIME)
    return {one.uid: one for one in found}


def _answers(
    known: Mapping[str, Decision], catalog: Catalog, device: Device, db: str | None, unposed: list[str]
) -> Iterator[Answer]:
    """The answer to each problem of the decisions; problems that no installed op has are added to ``unposed``."""
    from ..dispatch.dispatcher import Dispatcher
    from ..dispatch.resolve.resolution import choices

    dispatcher = Dispatcher(catalog, database=db)
    posed: dict[Problem, None] = {}
    for one in known.values():
        try:
            posed[catalog.op(one.problem.op).problem_of(one.problem.dims)] = None
        except RegistryError as fault:
            unposed.append(f"{text.named(one.problem)}: {fault.message}")
    for problem in posed:
        situation = dispatcher.bound(problem.op).plans.situation(problem, device)
        misses: list[str] = []
        choice = next(choices(situation, None, misses))
        decision = known.get(choice.decision.uid) if choice.decision and choice.step == "exact" else None
        held = 0 if choice.candidate is None else prepared_by(situation.op, choice.candidate, problem)
        yield Answer(problem, choice, _source(choice, situation), decision, next(iter(misses), ""), held)


def _source(choice: Choice, situation: Situation) -> str:
    if choice.step == "exact" and choice.decision is not None:
        return "shipped" if situation.winners.placed.is_shipped(choice.decision) else "database"
    learnt, candidate = situation.winners.learnt, choice.candidate
    if choice.step != "default" or learnt is None or candidate is None:
        return choice.step
    return "learnt default" if candidate.implementation.name in learnt.rank(situation.problem.dims) else "default"


def _row(answer: Answer, baseline: str) -> list[str]:
    held = answer.prepared_bytes
    return [
        answer.implementation,
        text.pairs(answer.config),
        *(figures(answer.decision, baseline) if answer.decision else [text.NOTHING] * len(FIGURES)),
        answer.source,
        "" if answer.decision else answer.missed,
        f"{held / 2**20:.1f} MiB" if held else "",
    ]


def _total(answers: Sequence[Answer], device: Device) -> str:
    """``12 problems on cpu (AMD EPYC): 10 database, 2 shipped``."""
    if not answers:
        return f"no winner for {device}: calls run defaults, until you tune"
    counts = Counter(answer.source for answer in answers)
    told = ", ".join(f"{count} {source}" for source, count in counts.most_common())
    return f"{text.plural(len(answers), 'problem')} on {device}: {told}"


def _data(answer: Answer) -> dict[str, object]:
    return {
        "op": answer.problem.op,
        "dims": answer.problem.dims,
        "implementation": answer.implementation,
        "config": answer.config,
        "source": answer.source,
        "reason": answer.choice.reason,
        "missed": answer.missed,
        "prepared_bytes": answer.prepared_bytes,
        "decision": None if answer.decision is None else winner_data(answer.decision),
    }
