"""``tune --dry-run``: the candidates that would be tried, and the reasons for leaving out implementations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device import named
from ...folding import Place, folded
from . import text

if TYPE_CHECKING:
    from ...device import Device
    from ...tuner.planning.problems import ImplementationPlan, ProblemPlan
    from ...tuner.stored_winners import StandingWinner


@dataclass(frozen=True)
class PlannedRun:
    """A run on devices of one hardware: its plans, and the stored winners among their problems that are valid."""

    devices: Sequence[Device]
    plans: Sequence[ProblemPlan]
    standing: Sequence[StandingWinner] = ()


def show(planned: Iterable[PlannedRun], notes: Iterable[str], *, json: bool) -> None:
    """Prints each problem with its implementations: the number of configurations, or every reason against.

    A fault in what an implementation says of itself is told once, behind the problems. ``notes`` say which problems
    stand for others.
    """
    if json:
        text.print_json([data for run in planned for data in _run_data(run)])
        return
    for run in planned:
        _show(run)
    for note in notes:
        text.say(f"note: {note}")


def _show(run: PlannedRun) -> None:
    standing = {one.plan.problem: one for one in run.standing}
    for plan in run.plans:
        text.say(text.named(plan.problem))
        if plan.skipped:
            # the reasons are those of the lines that follow
            text.say(f"  skipped: {plan.skipped.partition(': ')[0] if plan.choices else plan.skipped}")
        if plan.problem in standing:
            text.say(f"  {_winner(standing[plan.problem])}", hang=4)
        for choice in plan.choices:
            text.say(f"  {choice.implementation.name:<22} {_choice(choice)}", hang=25)
    for line in folded(_faults(run.plans)):
        text.say(f"fault: {line}", hang=2)
    kept = {problem for problem, one in standing.items() if not one.unmet}
    tunable = [plan for plan in run.plans if not plan.skipped and plan.problem not in kept]
    candidates = sum(len(choice.configs) for plan in tunable for choice in plan.choices)
    skipped = sum(bool(plan.skipped) and plan.problem not in kept for plan in run.plans)
    before = f", {len(kept)} tuned before" if kept else ""
    text.say(
        f"{text.plural(len(tunable), 'problem')} to tune on {named(run.devices)} with "
        f"{text.plural(candidates, 'candidate')}, {skipped} skipped{before}"
    )


def _winner(standing: StandingWinner) -> str:
    winner = text.candidate(standing.decision.candidate.implementation, standing.decision.candidate.config)
    if standing.unmet:
        return f"raced again: the stored winner {winner} has not met {', '.join(standing.unmet)}"
    return f"tuned before: the stored winner {winner} stays (--retune races it again)"


def _faults(plans: Sequence[ProblemPlan]) -> Iterator[tuple[Place, str]]:
    for plan in plans:
        for choice in plan.choices:
            if choice.faulty:
                name = choice.implementation.name
                place = Place(f"{name} of {plan.op.name}", text.named(plan.problem), group=f"{name} of {plan.op.name}")
                yield place, "; ".join(choice.unsupported)


def _choice(choice: ImplementationPlan) -> str:
    if choice.faulty:
        return "out: a fault, told below"
    if choice.unsupported:
        return f"out: {'; '.join(choice.unsupported)}"
    default = text.pairs(choice.default or {})
    return text.plural(len(choice.configs), "config") + (f", default {default}" if default != "-" else "")


def _run_data(run: PlannedRun) -> Iterator[dict[str, object]]:
    standing = {one.plan.problem: one for one in run.standing}
    for plan in run.plans:
        yield _data(plan, standing.get(plan.problem))


def _data(plan: ProblemPlan, standing: StandingWinner | None) -> dict[str, object]:
    return {
        "op": plan.problem.op,
        "dims": plan.problem.dims,
        "hardware": plan.device.name,
        "skipped": plan.skipped,
        "winner": None if standing is None else _winner_data(standing),
        "implementations": [
            {
                "name": choice.implementation.name,
                "configs": len(choice.configs),
                "default": choice.default,
                "unsupported": choice.unsupported,
            }
            for choice in plan.choices
        ],
    }


def _winner_data(standing: StandingWinner) -> dict[str, object]:
    winner = standing.decision.candidate
    return {"implementation": winner.implementation, "config": winner.config, "unmet": standing.unmet}
