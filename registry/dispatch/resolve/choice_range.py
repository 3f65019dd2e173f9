"""For which row counts resolution would choose the same: asked of sizes that stand for many.

It mirrors ``resolution``: first the winners, the exact problem's and then the nearest ones in order, then the defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tuning_db import Decision

from ...device import Device
from ...discovery.answers import is_config, is_preference
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config, config_key
from ...symbolic import settled
from ..plans.plan import Candidate
from ..plans.sized_plan import Sized
from .resolution import (
    Choice,
    Situation,
    choices,
    default_of,
    preference_of,
    refusals,
    usable,
    violations,
)

_OTHERWISE = "{} answers otherwise when it is asked for many row counts"


def keep_choice(call: Sized, situation: Situation, choice: Choice) -> str:
    """Narrow the call's interval to where ``choice`` is the first one; why that cannot be said, empty when it is done.

    Needs a choice that rests on a near winner or on a heuristic: that of an exact problem holds for no other.
    """
    candidate = choice.candidate
    if candidate is None or choice.step not in {"nearest", "default"}:
        return f"it was resolved by the step {choice.step}"
    first = next(choices(situation, None, []))
    if first.candidate is None or first.candidate.key != candidate.key or first.step != choice.step:
        return "a better choice was passed over here"
    if reason := _keep_winners(call, situation, choice):
        return reason
    if choice.step == "default" and (reason := _keep_default(call, situation, candidate)):
        return reason
    _keep_conditions(call, candidate, situation.device)
    return call.interval.unsound


def same_choice(call: Sized, situation: Situation, choice: Choice, rows: int) -> bool:
    """Whether resolution itself chooses the same for ``rows``: a check on what was said of them."""
    other = next(choices(replace(situation, problem=call.at(rows)), None, []))
    return (
        other.step == choice.step
        and other.candidate is not None
        and choice.candidate is not None
        and other.candidate.key == choice.candidate.key
    )


# --- winners


def _keep_winners(call: Sized, situation: Situation, choice: Choice) -> str:
    op = situation.op
    if any(True for _ in situation.winners.exact(situation.problem)):
        return "there is a winner of exactly this problem, which does not hold"
    nearest = [near.decision for near in situation.winners.nearest(op, situation.problem)]
    for decision in nearest:
        # sizes that are tuned themselves have their own answer
        if all(call.problem.dims[name] == decision.problem.dims[name] for name in sorted(op.dynamic)):
            return "it is a tuned problem"
    asked = len(nearest)
    if choice.step == "nearest":
        asked = next(place for place, decision in enumerate(nearest) if decision is choice.decision)
        _keep_order(call, situation, nearest[: asked + 1])
    for decision in nearest[:asked]:
        if _holds(call, situation, decision):
            return "a nearer winner was passed over"
    if asked < len(nearest) and not _holds(call, situation, nearest[asked]):
        return "the nearest winner does not hold"
    return ""


def _keep_order(call: Sized, situation: Situation, wanted: list[Decision]) -> None:
    """Narrow to where the nearest winners are ``wanted``, in that order.

    Between two tuned sizes a distance rises or falls all along, so that the order changes once and does not come back.
    """

    rivals = {id(near.decision) for near in situation.winners.nearest(situation.op, situation.problem)}
    winners = replace(
        situation.winners,
        decisions=tuple(one for one in situation.winners.decisions if id(one) in rivals),
        shipped=tuple(one for one in situation.winners.shipped if id(one) in rivals),
    )

    def order(rows: int) -> list[int]:
        found = winners.nearest(situation.op, call.at(rows))
        return [id(near.decision) for near, _ in zip(found, wanted, strict=False)]

    def sure(lo: int, hi: int) -> bool:
        return all(order(rows) == [id(one) for one in wanted] for rows in {lo, hi})

    call.interval.keep(sure, "another tuned problem is nearer")


def _holds(call: Sized, situation: Situation, decision: Decision) -> bool:
    """What ``resolution.usable`` says, asked of many row counts where its answer depends on them."""
    implementation, config = situation.named(decision.candidate.implementation), decision.candidate.config
    answer = isinstance(usable(decision, situation), Candidate)
    if implementation is None:
        return False
    plainly = not refusals(implementation, situation.problem, situation.device) and not violations(
        implementation, config, situation
    )
    asked = _runs(implementation, call, situation.device) and _in_space(implementation, config, call, situation.device)
    if asked != plainly:
        call.interval.forget(_OTHERWISE.format(implementation.name))
    # what is left (a changed source, another version of the op) is the same for every row count
    return answer


# --- defaults


def _keep_default(call: Sized, situation: Situation, candidate: Candidate) -> str:
    device = situation.device
    ranked: list[tuple[Any, Implementation]] = []
    for implementation in situation.implementations:
        if not _runs(implementation, call, device):
            continue
        preference = partial(implementation.preference, call.problem, device)
        if isinstance(preference_of(implementation, situation.problem, device), str):
            _keep_fault(call, implementation, preference, is_preference)
        else:
            ranked.append((preference(), implementation))
    for _, implementation in sorted(ranked, key=lambda pair: -pair[0]):
        default = partial(implementation.default, call.problem, device)
        if isinstance(default_of(implementation, situation.problem, device), str):
            _keep_fault(call, implementation, default, is_config)
            continue
        config = {name: settled(value) for name, value in default().items()}
        same = implementation is candidate.implementation and config_key(config) == config_key(candidate.config)
        return "" if same else _OTHERWISE.format(implementation.name)
    return "no implementation runs"


def _keep_fault(
    call: Sized, implementation: Implementation, ask: Callable[[], Any], is_answer: Callable[[Any], bool]
) -> None:
    """Resolution passes over who answers with a fault: then that must be so at every row count.

    What is asked before the fault narrows the interval as it does before an answer.
    """
    with call.interval.free_text():
        try:
            answers = is_answer(ask())
        except Exception:
            answers = False
    if answers:
        call.interval.forget(_OTHERWISE.format(implementation.name))


# --- implementations


def _runs(implementation: Implementation, call: Sized, device: Device) -> bool:
    return device.type in implementation.device_types and not _refuses(implementation, call.problem, device, call)


def _refuses(implementation: Implementation, problem: Problem, device: Device, call: Sized) -> bool:
    # whether there are reasons must be the same, not what they say
    with call.interval.free_text():
        return _said(call, problem, lambda asked: any(True for _ in implementation.unsupported(asked, device)), True)


def _in_space(implementation: Implementation, config: Config, call: Sized, device: Device) -> bool:
    return _said(call, call.problem, lambda asked: not implementation.space(asked, device).violations(config), False)


def _said(call: Sized, problem: Problem, ask: Callable[[Problem], bool], by_fault: bool) -> bool:
    """What is said of ``problem`` with its many row counts: ``by_fault`` where the very call's is a fault, too.

    Resolution takes a fault for a refusal.
    """
    try:
        return ask(problem)
    except Exception:
        try:
            ask(replace(problem, dims=call.at(call.interval.rows).dims))
        except Exception:
            return by_fault
        raise


def _keep_conditions(call: Sized, candidate: Candidate, device: Device) -> None:
    """Whether misaligned tensors need another plan must be the same."""
    if call.problem.traits["aligned"]:
        misaligned = call.problem.misaligned()
        _refuses(candidate.implementation, misaligned, device, call)
