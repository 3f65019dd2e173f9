"""``tune --dry-run``: the candidates that would be tried, and the reasons for leaving out implementations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...device import named
from ...folding import Place, folded
from . import text

if TYPE_CHECKING:
    from ...device import Device
    from ...tuner.planning.problems import ImplementationPlan, ProblemPlan


def show(
    planned: Iterable[tuple[Sequence[Device], Sequence[ProblemPlan]]], notes: Iterable[str], *, json: bool
) -> None:
    """Prints each problem with its implementations: the number of configurations, or every reason against.

    A fault in what an implementation says of itself is told once, behind the problems.
    ``planned``: devices of one hardware, and the plans for them. ``notes`` say which problems stand for others.
    """
    if json:
        text.print_json([_data(plan) for _, plans in planned for plan in plans])
        return
    for devices, plans in planned:
        _show(devices, plans)
    for note in notes:
        text.say(f"note: {note}")


def _show(devices: Sequence[Device], plans: Sequence[ProblemPlan]) -> None:
    for plan in plans:
        text.say(text.named(plan.problem))
        if plan.skipped:
            # the reasons are those of the lines that follow
            text.say(f"  skipped: {plan.skipped.partition(': ')[0] if plan.choices else plan.skipped}")
        for choice in plan.choices:
            text.say(f"  {choice.implementation.name:<22} {_choice(choice)}", hang=25)
    for line in folded(_faults(plans)):
        text.say(f"fault: {line}", hang=2)
    tunable = [plan for plan in plans if not plan.skipped]
    candidates = sum(len(choice.configs) for plan in tunable for choice in plan.choices)
    text.say(
        f"{text.plural(len(tunable), 'problem')} to tune on {named(devices)} with "
        f"{text.plural(candidates, 'candidate')}, {len(plans) - len(tunable)} skipped"
    )


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


def _data(plan: ProblemPlan) -> dict[str, object]:
    return {
        "op": plan.problem.op,
        "dims": plan.problem.dims,
        "hardware": plan.device.name,
        "skipped": plan.skipped,
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
