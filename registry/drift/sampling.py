"""The winners that are timed again: a sample, in which those that take most of the programs' time are likeliest."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tuning_db import Decision, MissingDatabaseError, Store

from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.resolve.winners import REGIME, Winners
from ..errors import RegistryError
from ..problem import Problem
from ..shipped import shipped

SOFTWARE = ("driver", "torch", "triton")
"""The parts of a software identity with which kernels' times change."""


@dataclass(frozen=True)
class InstalledWinner:
    """A winner of this hardware for a problem of an op that is installed."""

    decision: Decision
    problem: Problem


def winners_of(winners: Winners, catalog: Catalog, device: Device) -> list[InstalledWinner]:
    """The winners that dispatch reads for a device, one of each problem; shipped ones of other problems too.

    Of several for one problem that of this software, else the newest, as dispatch has it. Raises ReleaseError if a
    pinned release is not found, StoreError and TuningDBError for what cannot be read.
    """
    found: dict[Problem, Decision] = {}
    stored = sorted(_stored(winners, device), key=lambda one: one.environment.software != device.software())
    for decision in [*stored, *shipped(device.hardware(), REGIME)]:
        if decision.problem.op not in catalog.ops():
            continue
        with suppress(RegistryError):  # dimensions that the op no longer has
            problem = catalog.op(decision.problem.op).problem_of(decision.problem.dims)
            found.setdefault(problem, decision)
    return [InstalledWinner(decision, problem) for problem, decision in found.items()]


def _stored(winners: Winners, device: Device) -> list[Decision]:
    try:
        with Store.open(winners.place().database, create=False, migrate=False) as store:
            return store.winners(hardware=device.hardware(), regime=REGIME)
    except MissingDatabaseError:
        return []


def changes(decision: Decision, device: Device) -> list[str]:
    """The versions of driver, torch and triton that have changed since a decision: ``torch 2.11.0 -> 2.12.0``."""
    then, now = decision.environment.software, device.software()
    return [
        f"{name} {then.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in SOFTWARE
        if then.get(name) != now.get(name)
    ]


def calls_of(counts: Mapping[Problem, int], winners: Winners, catalog: Catalog, device: Device) -> Mapping[str, int]:
    """The counted calls that each winner answers, by its uid: those of its own problem, and of problems near it."""
    calls: Counter[str] = Counter()
    for problem, count in counts.items():
        op = catalog.op(problem.op)
        near = next(iter(winners.of(op, device).index.nearest(op, problem, own=True)), None)
        if near is not None:
            calls[near.decision.uid] += count
    return calls


def sampled(
    winners: Sequence[InstalledWinner], calls: Mapping[str, int], most: int, seed: int
) -> list[InstalledWinner]:
    """At most ``most`` of the winners, drawn without replacement by their share of the calls' time.

    ``calls``: calls by uid of a winner, see ``calls_of``; without any, each winner counts as called once. The method is
    that of Efraimidis and Spirakis (2006): the greatest ``u ** (1 / weight)``.
    """
    chance = random.Random(seed)
    drawn = []
    # in the order of uids, so that a seed draws the same on every host
    for one in sorted(winners, key=lambda one: one.decision.uid):
        weight = calls.get(one.decision.uid, 0 if calls else 1) * one.decision.median_us
        if weight > 0:
            drawn.append((math.log(1 - chance.random()) / weight, one))
    drawn.sort(key=lambda pair: -pair[0])
    return [one for _, one in drawn[:most]]
