"""``tune --dry-run``: the candidates that would be tried, and the reasons for leaving out implementations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import text

if TYPE_CHECKING:
    from ...device import Device
    from ...tuner.planning.problems import ImplementationPlan, ProblemPlan


def show(plans: Sequence[ProblemPlan], device: Device, *, json: bool) -> None:
    """Prints each problem with its implementations: the number of configurations, or every reason against."""
    if json:
        text.print_json([_data(plan) for plan in plans])
        return
    for plan in plans:
        text.say(text.named(plan.problem))
        if plan.skipped:
            text.say(f"  skipped: {plan.skipped}")
        for choice in plan.choices:
            text.say(f"  {choice.implementation.name:<22} {_choice(choice)}", hang=25)
    tunable = [plan for plan in plans if not plan.skipped]
    candidates = sum(len(choice.configs) for plan in tunable for choice in plan.choices)
    text.say(
        f"{text.plural(len(tunable), 'problem')} to tune on {device} with {text.plural(candidates, 'candidate')}, "
        f"{len(plans) - len(tunable)} skipped"
    )


def _choice(choice: ImplementationPlan) -> str:
    if choice.unsupported:
        return f"out: {'; '.join(choice.unsupported)}"
    default = text.pairs(choice.default or {})
    return text.plural(len(choice.configs), "config") + (f", default {default}" if default != "-" else "")


def _data(plan: ProblemPlan) -> dict[str, object]:
    return {
        "op": plan.problem.op,
        "dims": plan.problem.dims,
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
