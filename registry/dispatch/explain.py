"""Explanations: the implementation that a call runs, and the reasons, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuning_db import Decision, is_noise

from ..arguments.schema import tensors_in
from ..device import Device
from ..implementation import Implementation
from ..problem import Problem
from ..space import Config
from ..untrusted.visible import visible
from .forcing import Forced
from .mode import REFERENCE_MODE, Mode
from .plans.prepared import prepared_bytes
from .resolve.answers_or_faults import default_of, preference_of, refusals
from .resolve.candidates import Plans
from .resolve.failures import told_of
from .resolve.resolution import Choice, Step, choices
from .resolve.resolved import Resolved
from .resolve.situation import Situation, apart_dims
from .resolve.standings import changed_software
from .resolve.tuning_command import tune_command


@dataclass(frozen=True)
class Other:
    """An implementation that does not answer the call, with every reason."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The implementation that answers a call, and why; prints as text.

    step            "forced", "exact", "nearest", "default" or "reference"
    implementation  its name; "reference" is the op's own definition in torch
    evidence        the stored decision that it rests on, if any: about this problem, or about a near one
    there_us        the time of this candidate on the evidence's problem, in µs, if it was measured there
    source          where the evidence is from: a database, or the winners shipped with the package
    octaves         distance of the tuned problem along the dynamic dimensions, in powers of two; 0 for this problem
    software        software whose version has changed since the evidence was measured
    misses          why better choices were passed over
    others          every other implementation with its reasons
    prepared_bytes  bytes held for prepared arguments (repacked weights) of this call
    tune_command    a shell command that tunes exactly this problem
    calls           how many calls this plan has answered since it was made
    mode            the mode of dispatch, see registry.configure(mode=...)
    raises          in mode "strict" the call raises NotTunedError: only a heuristic could answer it
    """

    op: str
    problem: Problem | None
    device: str
    step: Step
    implementation: str
    config: Config
    reason: str
    evidence: Decision | None = None
    octaves: float = 0.0
    software: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    others: tuple[Other, ...] = ()
    prepared_bytes: int = 0
    tune_command: str = ""
    calls: int = 0
    mode: Mode = "tuned"
    raises: bool = False
    source: str = ""
    there_us: float | None = None

    @property
    def median_us(self) -> float | None:
        """The time that was measured for exactly this problem and candidate, in µs."""
        return self.there_us if _is_about(self.evidence, self.problem) else None

    def __str__(self) -> str:
        return visible("\n".join(_story(self)))


def explained(plans: Plans, resolved: Resolved, values: tuple[Any, ...], mode: Mode) -> Explanation:
    """The explanation of the answer that was resolved for a call."""
    told = _explained(plans, resolved, values)
    return replace(told, calls=resolved.calls.value, mode=mode, raises=mode == "strict" and resolved.untuned)


def _explained(plans: Plans, resolved: Resolved, values: tuple[Any, ...]) -> Explanation:
    tensors = tensors_in(values)
    if resolved.problem is None or not tensors or tensors[0].device.type not in {"cpu", "cuda"}:
        where = str(tensors[0].device) if tensors else ""
        choice = resolved.choice
        return Explanation(plans.op.name, resolved.problem, where, choice.step, "reference", {}, choice.reason)
    situation = plans.situation(resolved.problem, Device.of(tensors[0].device))
    aside = {} if resolved.place is None else plans.failures.reasons(resolved.place)
    held = 0 if resolved.plan is None else resolved.plan.prepared.nbytes(values)
    return _explanation(situation, resolved.choice, resolved.misses, aside, held)


def explained_problem(situation: Situation, forced: Forced | None, mode: Mode) -> Explanation:
    """The explanation of a problem without tensors: its first choice, which is not built."""
    misses: list[str] = []
    if mode == "reference":
        choice = Choice("reference", None, REFERENCE_MODE)
    else:
        choice = next(choices(situation, forced, misses))
    told = _explanation(situation, choice, tuple(misses), {}, 0)
    return replace(told, mode=mode, raises=mode == "strict" and choice.step == "default")


def _explanation(
    situation: Situation, choice: Choice, misses: tuple[str, ...], aside: Mapping[str, str], held: int
) -> Explanation:
    candidate, decision, source = choice.candidate, choice.decision, choice.source
    evidence, fault = (None, "") if decision is None else situation.winners.evidence.decision(decision)
    if fault:
        source = f"{source} (its figures cannot be read: {fault})"
    name = "reference" if candidate is None else candidate.implementation.name
    return Explanation(
        op=situation.op.name,
        problem=situation.problem,
        device=str(situation.device),
        step=choice.step,
        implementation=name,
        config={} if candidate is None else dict(candidate.config),
        reason=choice.reason,
        evidence=evidence,
        octaves=choice.octaves,
        software=() if decision is None else changed_software(decision, situation.device),
        misses=misses,
        others=_others(situation, choice, aside, evidence),
        prepared_bytes=held,
        tune_command=tune_command(situation.problem, situation.files),
        source=source,
        there_us=None if evidence is None or choice.over is None else evidence.median_us * choice.over,
    )


def _others(
    situation: Situation, choice: Choice, aside: Mapping[str, str], evidence: Decision | None
) -> tuple[Other, ...]:
    chosen = choice.candidate.implementation if choice.candidate else None
    return tuple(
        Other(found.name, _reasons(found, situation, choice, aside, evidence))
        for found in situation.implementations
        if found is not chosen
    )


def _reasons(
    implementation: Implementation,
    situation: Situation,
    choice: Choice,
    aside: Mapping[str, str],
    evidence: Decision | None,
) -> tuple[str, ...]:
    if reasons := refusals(implementation, situation.problem, situation.device):
        return tuple(reasons)
    name = implementation.name
    if failed := [told_of(implementation, reason) for key, reason in aside.items() if key.split(" ")[0] == name]:
        return tuple(failed)
    if isinstance(none := default_of(implementation, situation.problem, situation.device), str):
        return (none,)
    return (f"supported, not chosen: {_comparison(implementation, situation, choice, evidence)}",)


def _comparison(implementation: Implementation, situation: Situation, choice: Choice, evidence: Decision | None) -> str:
    if choice.step == "reference":
        return choice.reason
    if choice.step == "forced":
        return "another one is forced"
    if choice.decision is not None:
        if evidence is None:
            return "another one won"
        return _in_finals(implementation, situation, choice, evidence)
    if choice.like is not None:
        return "nothing tuned is near, and another one was faster in the most similar problems that are tuned"
    return _less_preferred(implementation, situation)


def _less_preferred(implementation: Implementation, situation: Situation) -> str:
    learnt, dims = situation.winners.learnt, situation.problem.dims
    rank = {} if learnt is None else learnt.rank(dims)
    if learnt is not None and implementation.name in rank:
        return f"nothing tuned is near, and it took {learnt.reason(dims, implementation.name)}"
    if rank:
        return "nothing tuned is near, and its default was slower in the problems that the choice was learnt from"
    preference = preference_of(implementation, situation.problem, situation.device)
    if isinstance(preference, str):
        return preference
    return f"nothing tuned is near, and its heuristic preference is only {preference:g}"


def _is_about(decision: Decision | None, problem: Problem | None) -> bool:
    return decision is not None and problem is not None and dict(decision.problem.dims) == dict(problem.dims)


def _in_finals(implementation: Implementation, situation: Situation, choice: Choice, evidence: Decision) -> str:
    """The measured result of another implementation where the choice's candidate was measured, as text."""
    here = _is_about(evidence, situation.problem)
    where = "the finals" if here else f"the finals of {apart_dims(situation.op, evidence, situation.problem)}"
    ratio = evidence.time_over(implementation.name)
    if ratio is None:
        return f"it did not reach {where}"
    if not here and not implementation.transfers:
        return f"it is made for each size, so that its time in {where} says nothing about this one"
    if choice.over is None:
        return f"it took {ratio:.2f} times as long as the winner in {where}"
    return f"it took {ratio / choice.over:.2f} times as long in {where}"


def _story(told: Explanation) -> list[str]:
    config = ", ".join(f"{name}={value}" for name, value in told.config.items())
    lines = [
        f"{told.problem or told.op} on {told.device}",
        f"  runs   {told.implementation}{f'({config})' if config else ''}",
        f"  step   {told.step}: {told.reason}",
        *_mode(told),
    ]
    if told.evidence is not None:
        lines += _evidence(told, told.evidence)
    elif told.source:
        lines.append(f"  from   {told.source}")
    lines += [f"  missed {miss}" for miss in told.misses]
    if told.prepared_bytes:
        total = prepared_bytes()
        lines.append(f"  holds  {told.prepared_bytes:,} bytes of prepared arguments (of {total:,} over all ops)")
    for other in told.others:
        reasons = (reason.removeprefix(f"{other.name}: ") for reason in other.reasons)
        lines.append(f"  not    {other.name}: {'; '.join(reasons)}")
    if told.tune_command and told.step != "exact":
        lines.append(f"  tune   {told.tune_command}")
    return lines


def _mode(told: Explanation) -> list[str]:
    lines = [f"  calls  {told.calls:,} answered by this plan"] if told.calls else []
    if told.raises:
        lines.append("  mode   strict: nothing is tuned here, so that the call raises NotTunedError instead")
    elif told.mode != "tuned":
        lines.append(f"  mode   {told.mode}")
    return lines


def _evidence(told: Explanation, decision: Decision) -> list[str]:
    dims = ", ".join(f"{name}={value}" for name, value in decision.problem.dims.items())
    floor = f", a copy of the same bytes {decision.floor_us:.2f} µs" if decision.floor_us else ""
    when = f"on {decision.created:%Y-%m-%d %H:%M} UTC"
    if told.median_us is not None:
        lines = [f"  timed  {told.median_us:.2f} µs{floor}, {when}"]
        if told.implementation != decision.candidate.implementation:
            lines.append(f"  won    {decision.candidate.implementation} with {decision.median_us:.2f} µs")
    else:
        lines = [f"  timed  not at this size; expected to be fast from {told.octaves:.2f} octaves away"]
        won = f"{decision.candidate.implementation} won with {decision.median_us:.2f} µs"
        if told.there_us is None:
            it = f"{told.implementation} was not timed with this configuration, {won}"
        elif told.implementation == decision.candidate.implementation:
            it = f"it took {told.there_us:.2f} µs"
        else:
            it = f"it took {told.there_us:.2f} µs, {won}"
        lines.append(f"  there  {dims}: {it}{floor}, {when}")
    if told.source:
        lines.append(f"  from   {told.source}")
    if decision.ratio is not None and decision.lo is not None and decision.hi is not None:
        interval = f"{decision.lo:.3f} to {decision.hi:.3f}"
        known = f"the incumbent took {decision.ratio:.3f} times as long ({interval})"
        told_ratio = f"noise ({interval})" if is_noise(decision.lo, decision.hi) else known
        lines.append(f"  finals {decision.verdict or 'decided'}: {told_ratio}")
    if told.software:
        lines.append(f"  marked measured with other versions: {'; '.join(told.software)}")
    return lines
