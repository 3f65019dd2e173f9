"""Tasks of the processes that replay, in a module of its own: a spawned process cannot import ``__main__``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .format import Landscape
from .replay import Replay
from .replaying import Curve, alone, together
from .strategies import Exhaustive, Random, Strategy, gp, ours, tpe, tuners_tpe

BUDGET = 100

ALONE: dict[str, Callable[..., Strategy]] = {
    "ours, alone": ours,
    "--sampler tpe": tuners_tpe,
    "TPE": tpe,
    "GP": gp,
    "random": Random,
    "exhaustive": Exhaustive,
}
TOGETHER: dict[str, dict[str, Any]] = {
    "ours, together": {"share": True},
    "ours, together, stopping": {"share": True, "stop": True},
}


@dataclass(frozen=True)
class Task:
    """One strategy, one group of landscapes, one seed."""

    group: str
    strategy: str
    seed: int


GROUPS: dict[str, list[Landscape]] = {}
"""The landscapes by name of the group; filled when the process starts."""


def begin(groups: dict[str, list[Landscape]]) -> None:
    """Set the landscapes of a process when it starts."""
    GROUPS.update(groups)


def run(task: Task) -> tuple[Task, list[Curve]]:
    """Every landscape of the group, replayed."""
    replays = [Replay(landscape) for landscape in GROUPS[task.group]]
    if task.strategy in TOGETHER:
        return task, together(replays, BUDGET, task.seed, **TOGETHER[task.strategy])
    make = ALONE[task.strategy]
    return task, [alone(replay, make(replay.plan, task.seed), BUDGET) for replay in replays]
