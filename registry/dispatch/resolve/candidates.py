"""From values to what runs them: choices built into plans, remembered by what they were built for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...arguments.schema import tensors_in
from ...author_code import where_raised
from ...contract import Op
from ...correctness.output_faults import overlap, plain_fault
from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import NotReadyError, NotTunedError, RegistryError, UnsupportedError
from ...faults.device_faults import broken_context, out_of_memory
from ...forking import renewed_in_child
from ...implementation import Implementation
from ...problem import Arguments, Problem, TensorSpec
from ..forcing import Forced
from ..hit.counter import Counter
from ..hit.guards import Condition, aligned, determinism_asked, determinism_not_asked, misaligned, not_capturing
from ..mode import Mode
from ..plans.plan import Candidate, Draft, Plan
from ..plans.sizeless import SizelessRuns
from .failures import FailedCandidate, Failures, tell_broken
from .questions import refusals
from .resolution import Choice, Step, choices
from .situation import Situation
from .tuning_command import tune_command
from .winners import Winners

MOST_PLANS = 8192
"""Per op. Plans are shared by all forms of a call, and by grad and inference mode."""


@dataclass(frozen=True)
class Resolved:
    """What answers a call: ``run(*values)`` takes the schema's values in order. ``plan`` is None for the reference.

    ``misses`` tell why better choices were passed over; ``conditions`` are what an entry of the table must check.
    ``makeshift``: a better choice was merely not ready, so that this one must not become the rule. ``plain_torch``:
    torch must see the reference's operations one by one, e.g. to record or to trace them. ``untuned``: a
    heuristic chose it, for want of a winner that holds. ``calls`` counts the answers.
    """

    choice: Choice
    run: Callable[..., Any]
    problem: Problem | None
    place: Hashable = None
    plan: Plan | None = None
    misses: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    makeshift: bool = False
    plain_torch: bool = False
    untuned: bool = False
    calls: Counter = field(default_factory=Counter, compare=False)

    def check(self, outputs: Any, values: tuple[Any, ...]) -> None:
        """Check the outputs that functional code returned for ``values``: plain tensors as the op declares them.

        Raises RegistryError for others, and for an output that shares memory with an argument.
        """
        if self.plan is None or not self.plan.candidate.implementation.returns_outputs:
            return
        given = self.plan.returned(outputs)
        expected = self.plan.signature.outputs
        if len(given) != len(expected):
            raise RegistryError(f"{self.plan.candidate} returned {len(given)} outputs, expected {len(expected)}")
        for (name, spec), value in zip(expected.items(), given, strict=True):
            if not isinstance(value, torch.Tensor) or not _fits(value, spec):
                shown = TensorSpec.of(value) if isinstance(value, torch.Tensor) else value
                raise RegistryError(f"{self.plan.candidate} returned {name} as {shown}, expected {spec}")
            if fault := plain_fault(value):
                raise RegistryError(f"{self.plan.candidate} returned {name}, which {fault}")
            if any(overlap(value, argument) for argument in tensors_in(values)):
                raise RegistryError(f"{self.plan.candidate} returned {name}, which shares memory with an argument")


def resized(
    choice: Choice, plan: Plan, misses: tuple[str, ...], conditions: tuple[Condition, ...], untuned: bool
) -> Resolved:
    """What answers another size of a call, whose place nobody asks for. Made at once, without ``__init__``."""
    made = object.__new__(Resolved)
    made.__dict__.update(
        choice=choice,
        run=plan.call,
        problem=plan.problem,
        place=None,
        plan=plan,
        misses=misses,
        conditions=conditions,
        makeshift=False,
        plain_torch=False,
        untuned=untuned,
        calls=Counter(),
    )
    return made


class Attempt:
    """One run of what was resolved. ``fault`` is what it raised itself.

    What torch raises around it (a hook on saved tensors, as checkpointing ends its recomputation) is no candidate's.
    """

    def __init__(self, resolved: Resolved) -> None:
        self.fault: Exception | None = None
        self._resolved = resolved

    def __call__(self, *values: Any) -> Any:
        try:
            outputs = self._resolved.run(*values)
            self._resolved.check(outputs, values)
        except Exception as fault:
            self.fault = fault
            raise
        return outputs


def _fits(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    # the stride of a dimension of size one says nothing
    strides = zip(spec.shape, tensor.stride(), spec.strides, strict=False)
    return (tuple(tensor.shape), tensor.dtype, tensor.device) == (spec.shape, spec.dtype, spec.device) and (
        spec.numel == 0 or all(size == 1 or one == other for size, one, other in strides)
    )


def reference(op: Op, reason: str, problem: Problem | None = None) -> Resolved:
    """torch's reference, and why."""
    return Resolved(Choice("reference", None, reason), op.reference, problem, plain_torch=True)


@dataclass(frozen=True)
class Call:
    """What a call asks for; ``place`` is all that a plan is built for."""

    problem: Problem
    arguments: Arguments
    device: Device
    place: Hashable


class Plans:
    """Resolves an op's calls, and remembers the plans."""

    def __init__(self, op: Op, catalog: Catalog, winners: Callable[[], Winners], mode: Callable[[], Mode]) -> None:
        self.op = op
        self._mode = mode
        self.failures = Failures()
        self._catalog = catalog
        self._winners = winners
        self._plans: dict[Hashable, Resolved] = {}
        self.sizeless = SizelessRuns(op)
        self._situations: dict[tuple[str, int], tuple[Winners, Situation]] = {}
        self._lock = renewed_in_child(self, "_lock", threading.Lock)

    @property
    def generation(self) -> int:
        """Grows whenever all is forgotten. Taken before resolution: what was resolved earlier is not kept."""
        return self.failures.generation

    def clear(self) -> None:
        """Forget plans and failures, also what is being resolved at the moment."""
        with self._lock:
            self.failures.clear()
            self._plans = {}
            self._situations = {}
            self.sizeless = SizelessRuns(self.op)

    def remember(self, resolved: Resolved, forced: Forced | None, generation: int) -> None:
        """Keep a plan that ran and was resolved in ``generation``."""
        if resolved.plan is None or resolved.makeshift:
            return
        self.failures.settle(resolved.place, resolved.plan.candidate)
        with self._lock:
            if generation != self.generation:
                return
            self._plans[resolved.place, forced.key if forced else None] = resolved
            while len(self._plans) > MOST_PLANS:
                del self._plans[next(iter(self._plans))]

    def recall(self, place: Hashable, forced: Forced | None) -> Resolved | None:
        """What was kept."""
        return self._plans.get((place, forced.key if forced else None))

    def situation(self, problem: Problem, device: Device) -> Situation:
        """What resolution decides by; reads the op's winners if they are not in memory yet."""
        source, place = self._winners(), (device.type, device.index)
        known = self._situations.get(place)
        if known is None or known[0] is not source:
            implementations = self.implementations
            winners, verified = source.of(self.op, device), self._mode() == "verified"
            situation = Situation(self.op, problem, device, implementations, winners, verified=verified)
            known = self._situations[place] = source, situation
        return known[1].of(problem)

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """Those of the op that are installed."""
        return self._catalog.implementations(self.op.name)

    def in_memory(self, device: Device) -> bool:
        """Whether a situation on ``device`` is known without reading anything."""
        known = self._situations.get((device.type, device.index))
        return known is not None and known[0] is self._winners()

    def candidates(
        self, call: Call, forced: Forced | None, generation: int, strict: bool = False, loaded_only: bool = False
    ) -> Iterator[Resolved]:
        """Built plans, best first, ending with the reference. What cannot be built is put aside.

        ``strict``: raises NotTunedError instead of a default where no winner holds. ``loaded_only``: what is capturable
        and needs nothing compiled, loaded or read; the reference only where nothing else was passed over for that.
        """
        misses: list[str] = []
        unloaded = False
        makeshift = tuned = False
        passed: tuple[Condition, ...] = ()
        situation = self.situation(call.problem, call.device).of(call.problem, reads=not loaded_only)
        for choice in choices(situation, forced, misses):
            candidate = choice.candidate
            tuned = tuned or choice.step in {"exact", "nearest"}
            untuned = choice.step == "default" and not tuned
            if unloaded and (candidate is None or (strict and choice.step == "default")):
                return
            if strict and untuned:
                raise _not_tuned(call, misses)
            if candidate is None:
                narrow = passed if call.problem.traits["aligned"] else (*passed, misaligned)
                run = self.op.reference
                yield Resolved(choice, run, call.problem, call.place, None, tuple(misses), narrow, makeshift)
                return
            if loaded_only and not candidate.implementation.capturable:
                misses.append(f"{candidate}: it cannot be captured")
                unloaded = True
                continue
            failure = self.failures.find(call.place, candidate)
            if failure is not None or _not_deterministic_enough(candidate):
                reason = _passed_over(failure)
                if forced is not None:
                    raise UnsupportedError(f"{candidate} is forced, but {reason}")
                misses.append(f"{candidate}: {reason}")
                # what runs instead may answer for as long as this holds
                if failure is None:
                    passed = (*dict.fromkeys((*passed, determinism_asked)),)
                elif not math.isinf(failure.retry_at):
                    passed = (*passed, self.failures.pause(failure))
                continue
            try:
                plan = self._built(choice.step, candidate, call, loaded_only)
                if plan is None:
                    misses.append(f"{candidate}: it is not in memory, and a CUDA stream is capturing")
                    unloaded = True
                    continue
                run = plan.call
            except Exception as fault:
                reason = self.failed(call.place, candidate, fault, forced, generation)
                if not reason:
                    raise
                misses.append(reason)
                makeshift = makeshift or passes(fault)
                continue
            conditions = (*passed, *conditions_of(candidate, call.problem, call.device))
            yield Resolved(
                choice,
                run,
                call.problem,
                call.place,
                plan,
                tuple(misses),
                conditions,
                makeshift,
                untuned=untuned,
            )

    def _built(self, step: Step, candidate: Candidate, call: Call, loaded_only: bool) -> Plan | None:
        """The candidate's plan; None where it is not in memory and nothing else will do. Raises CompileError."""
        draft = Draft.of(self.op, candidate, call.problem, call.arguments, call.device)
        plan = draft.from_memory(self.sizeless)
        if plan is None and loaded_only and not (candidate.implementation.any_size and not draft.variants()):
            return None
        if plan is None and step in {"nearest", "default"}:
            plan = draft.untuned()
        return plan or draft.compiled({}, self.sizeless)

    def failed(
        self, place: Hashable, candidate: Candidate, fault: Exception, forced: Forced | None, generation: int
    ) -> str:
        """Put a candidate aside, unless it was merely not ready, and tell why; a forced one raises instead.

        Empty for a fault that no other candidate could avoid: the GPU refuses all further work.
        """
        if broken_context(fault):
            tell_broken(self.op.name, candidate, fault)
            return ""
        if forced is not None:
            if out_of_memory(fault):
                raise fault
            if isinstance(fault, RegistryError):
                raise fault
            line = where_raised(fault, candidate.implementation)
            raise UnsupportedError(f"{candidate} failed: {type(fault).__name__}: {fault}{line}") from fault
        if isinstance(fault, NotReadyError):
            return f"{candidate} was not ready: {fault.message}"
        with self._lock:
            self._plans.pop((place, None), None)
        return f"{candidate} was put aside: {self.failures.put(self.op.name, place, candidate, fault, generation)}"


def passes(fault: Exception) -> bool:
    """Whether the candidate may run at the next call: it was not ready, or memory was short."""
    return isinstance(fault, NotReadyError) or out_of_memory(fault)


def _passed_over(failure: FailedCandidate | None) -> str:
    if failure is not None:
        return f"it was put aside: {failure.reason}"
    return "it is not deterministic, which torch.use_deterministic_algorithms asks for"


def _not_tuned(call: Call, misses: list[str]) -> NotTunedError:
    passed_over = f" ({'; '.join(misses)})" if misses else ""
    return NotTunedError(
        f"{call.problem} is not tuned on {call.device}{passed_over}, and the mode is strict",
        hint=f"{tune_command(call.problem)}   # then registry.reload()",
    )


def _not_deterministic_enough(candidate: Candidate) -> bool:
    return not candidate.implementation.deterministic and torch.are_deterministic_algorithms_enabled()


def place_of(arguments: Arguments) -> Hashable:
    """All that a plan is built for: specs with their alignment, attributes, and whether determinism is asked for.

    The schema has fixed the attributes' types; a float is told by its digits, since 0.0 equals -0.0.
    """
    values = tuple([repr(value) if isinstance(value, float) else value for value in arguments.all.values()])
    return values, arguments.gradient, torch.are_deterministic_algorithms_enabled()


def conditions_of(candidate: Candidate, problem: Problem, device: Device) -> tuple[Condition, ...]:
    """What torch's guards do not see and this candidate depends on."""
    implementation = candidate.implementation
    conditions: list[Condition] = []
    if not problem.traits["aligned"]:
        # whatever runs here may be slower: aligned tensors of this shape must not end up with it
        conditions.append(misaligned)
    elif refusals(implementation, problem.misaligned(), device):
        conditions.append(aligned)
    if not implementation.capturable and device.type == "cuda":
        conditions.append(not_capturing)
    if not implementation.deterministic:
        conditions.append(determinism_not_asked)
    return tuple(conditions)
