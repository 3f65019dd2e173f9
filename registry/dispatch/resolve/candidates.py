"""Plans of one op: builds the choices for a call into plans, and remembers these by everything they depend on."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...author_code import where_run_failed
from ...contract import Op
from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import NotReadyError, NotTunedError, RegistryError, UnsupportedError
from ...faults.device_faults import broken_context, out_of_memory
from ...forking import renewed_in_child
from ...implementation import Implementation
from ...problem import Arguments, Problem
from ..forcing import Forced
from ..hit.guards import (
    AlignedLike,
    Condition,
    aligned,
    determinism_asked,
    determinism_not_asked,
    misaligned,
    not_capturing,
)
from ..mode import Mode
from ..plans.any_size_runs import AnySizeRuns
from ..plans.plan import Candidate, Draft, Plan
from ..torch_side.conforming import conforming_reference
from .answers_or_faults import refusals
from .failures import Failures, tell_broken
from .resolution import Choice, Step, choices
from .resolved import Resolved
from .situation import Situation, runs_verified_code, shown_near
from .tuning_command import tune_command
from .winners import OpWinners, Winners

MOST_PLANS = 8192
"""The most plans per op. A plan is shared by all forms of a call, and by grad and inference mode."""


@dataclass(frozen=True)
class Call:
    """A call to resolve; ``place`` is a key of everything that a plan depends on."""

    problem: Problem
    arguments: Arguments
    device: Device
    place: Hashable


@dataclass
class _Way:
    """The state of resolving one call: why choices were passed over, and under which conditions that remains so.

    ``unloaded``: a choice was passed over only because nothing may be loaded now. ``makeshift``: one was not ready.
    """

    call: Call
    forced: Forced | None
    generation: int
    loaded_only: bool
    misses: list[str] = field(default_factory=list)
    conditions: tuple[Condition, ...] = ()
    unloaded: bool = False
    makeshift: bool = False

    def answer(
        self,
        choice: Choice,
        run: Callable[..., Any],
        plan: Plan | None,
        conditions: tuple[Condition, ...],
        *,
        untuned: bool,
    ) -> Resolved:
        """The answer to the call by a choice, with its own ``conditions`` besides those so far."""
        call, misses, demands = self.call, tuple(self.misses), (*self.conditions, *conditions)
        makeshift = self.makeshift
        return Resolved(choice, run, call.problem, call.place, plan, misses, demands, makeshift, untuned=untuned)


class Plans:
    """Resolves an op's calls, and remembers their plans."""

    def __init__(self, op: Op, catalog: Catalog, winners: Callable[[], Winners], mode: Callable[[], Mode]) -> None:
        self.op = op
        self._mode = mode
        self.failures = Failures()
        self._catalog = catalog
        self._winners = winners
        self._plans: dict[Hashable, Resolved] = {}
        self.any_size_runs = AnySizeRuns(op)
        self._situations: dict[tuple[str, int], tuple[Winners, Situation]] = {}
        self._lock = renewed_in_child(self, "_lock", threading.Lock)

    @property
    def generation(self) -> int:
        """The number of ``clear`` calls. Read it before resolving: ``remember`` ignores an older generation's plans."""
        return self.failures.generation

    def clear(self) -> None:
        """Forget plans and failures; those that are being resolved now will not be kept."""
        with self._lock:
            self.failures.clear()
            self._plans = {}
            self._situations = {}
            self.any_size_runs = AnySizeRuns(self.op)

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
        """The Resolved that ``remember`` kept for a place; None without one."""
        return self._plans.get((place, forced.key if forced else None))

    def situation(self, problem: Problem, device: Device) -> Situation:
        """The situation of a problem on a device; reads the op's winners if they are not in memory yet."""
        source, place = self._winners(), (device.type, device.index)
        known = self._situations.get(place)
        if known is None or known[0] is not source:
            implementations = self.implementations
            winners, verified = source.of(self.op, device), self._mode() == "verified"
            files = self._catalog.files_of(self.op.name)
            situation = Situation(self.op, problem, device, implementations, winners, verified=verified, files=files)
            known = self._situations[place] = source, situation
        return known[1].of(problem)

    def mode(self) -> Mode:
        """The mode of dispatch."""
        return self._mode()

    def winners(self, device: Device) -> OpWinners:
        """The op's winners on the hardware of a device; read if they are not in memory yet."""
        return self._winners().of(self.op, device)

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """The installed implementations of the op."""
        return self._catalog.implementations(self.op.name)

    def in_memory(self, device: Device) -> bool:
        """True if ``situation`` need not read winners for ``device``."""
        known = self._situations.get((device.type, device.index))
        return known is not None and known[0] is self._winners()

    def candidates(
        self, call: Call, forced: Forced | None, generation: int, strict: bool = False, loaded_only: bool = False
    ) -> Iterator[Resolved]:
        """Answers by built plans, best first, then by the reference. A candidate that cannot be built is put aside.

        ``strict``: raises NotTunedError instead of using a default if no winner holds. ``loaded_only``: only capturable
        candidates that need nothing compiled, loaded or read; the reference only if this has excluded no candidate.
        """
        way = _Way(call, forced, generation, loaded_only)
        situation = self.situation(call.problem, call.device).of(call.problem, reads=not loaded_only)
        tuned = False
        for choice in choices(situation, forced, way.misses):
            candidate = choice.candidate
            tuned = tuned or choice.step in {"exact", "nearest"}
            if way.unloaded and (candidate is None or (strict and choice.step == "default")):
                return
            if strict and choice.step == "default" and not tuned:
                raise _not_tuned(call, way.misses, situation.files)
            if candidate is None:
                narrow = () if call.problem.traits["aligned"] else (misaligned,)
                yield way.answer(choice, conforming_reference(self.op), None, narrow, untuned=False)
                return
            plan = None if self._passed_over(way, candidate) else self._tried(way, situation, choice, candidate)
            if plan is not None:
                conditions = conditions_of(candidate, call)
                yield way.answer(choice, plan.call, plan, conditions, untuned=choice.step == "default" and not tuned)

    def _passed_over(self, way: _Way, candidate: Candidate) -> bool:
        """True if the candidate must not run now. Raises UnsupportedError if it is forced."""
        if way.loaded_only and not candidate.implementation.capturable:
            way.misses.append(f"{candidate}: it cannot be captured")
            way.unloaded = True
            return True
        failure = self.failures.find(way.call.place, candidate)
        if failure is not None:
            reason = f"it was put aside: {failure.reason}"
        elif not candidate.implementation.deterministic and torch.are_deterministic_algorithms_enabled():
            reason = "it is not deterministic, which torch.use_deterministic_algorithms asks for"
        else:
            return False
        if way.forced is not None:
            raise UnsupportedError(f"{candidate} is forced, but {reason}")
        if not any(miss.startswith(_put_aside(candidate)) for miss in way.misses):
            way.misses.append(f"{candidate}: {reason}")
        # another candidate may answer further calls only while this reason holds
        if failure is None:
            way.conditions = (*dict.fromkeys((*way.conditions, determinism_asked)),)
        elif not math.isinf(failure.retry_at):
            way.conditions = (*way.conditions, self.failures.pause(failure))
        return True

    def _tried(self, way: _Way, situation: Situation, choice: Choice, candidate: Candidate) -> Plan | None:
        """The candidate's plan; None if it cannot be built or must not be loaded. Raises if the GPU is unusable."""
        call = way.call
        try:
            draft = Draft.of(self.op, candidate, call.problem, call.arguments, call.device)
            decision = choice.decision if choice.step == "nearest" else None
            if decision is not None and not runs_verified_code(self.op, decision, draft):
                way.misses.append(
                    f"{shown_near(situation, decision)}: {candidate} needs other code here than was verified"
                )
                return None
            plan = self._built(choice.step, draft, way.loaded_only)
            if plan is not None:
                plan.call  # noqa: B018 - generating it may fail, too
                return plan
        except Exception as fault:
            reason = self.failed(way.call.place, candidate, fault, way.forced, way.generation)
            if not reason:
                raise
            way.misses.append(reason)
            way.makeshift = way.makeshift or passes(fault)
            return None
        way.misses.append(f"{candidate}: it is not in memory, and a CUDA stream is capturing")
        way.unloaded = True
        return None

    def _built(self, step: Step, draft: Draft, loaded_only: bool) -> Plan | None:
        """The draft's plan; None if it is not in memory and ``loaded_only``. Raises CompileError."""
        plan = draft.from_memory(self.any_size_runs)
        if plan is None and loaded_only and not (draft.candidate.implementation.any_size and not draft.variants()):
            return None
        if plan is None and step in {"nearest", "default"}:
            plan = draft.untuned()
        return plan or draft.compiled({}, self.any_size_runs)

    def failed(
        self, place: Hashable, candidate: Candidate, fault: Exception, forced: Forced | None, generation: int
    ) -> str:
        """Put a candidate aside, unless it was only not ready, and return why. Raises for a forced one instead.

        "" if the GPU refuses all further work, so that every candidate would fail.
        """
        if broken_context(fault):
            tell_broken(self.op.name, candidate, fault)
            return ""
        if forced is not None:
            if out_of_memory(fault) or isinstance(fault, RegistryError):
                raise fault
            line = where_run_failed(fault, candidate.implementation)
            raise UnsupportedError(f"{candidate} failed: {type(fault).__name__}: {fault}{line}") from fault
        if isinstance(fault, NotReadyError):
            return f"{candidate} was not ready: {fault.message}"
        with self._lock:
            self._plans.pop((place, None), None)
        return f"{_put_aside(candidate)}{self.failures.put(self.op.name, place, candidate, fault, generation)}"


def _put_aside(candidate: Candidate) -> str:
    """How the reason begins why a candidate was put aside while a call was resolved."""
    return f"{candidate} was put aside: "


def passes(fault: Exception) -> bool:
    """True if a fault may not occur at the next call: the candidate was not ready, or memory was short."""
    return isinstance(fault, NotReadyError) or out_of_memory(fault)


def _not_tuned(call: Call, misses: list[str], files: Iterable[str]) -> NotTunedError:
    passed_over = f" ({'; '.join(misses)})" if misses else ""
    return NotTunedError(
        f"{call.problem} is not tuned on {call.device}{passed_over}, and the mode is strict",
        hint=f"{tune_command(call.problem, files)}   # then registry.reload()",
    )


def place_of(arguments: Arguments) -> Hashable:
    """A key of everything that a plan depends on: specs with alignment, attributes, and torch's determinism setting.

    The schema fixes the attributes' types; a float is in the key as text, since 0.0 equals -0.0.
    """
    values = tuple([repr(value) if isinstance(value, float) else value for value in arguments.unrecorded.values()])
    return values, arguments.gradient, torch.are_deterministic_algorithms_enabled()


def conditions_of(candidate: Candidate, call: Call) -> tuple[Condition, ...]:
    """The conditions of a candidate's answer to a call that torch's guards do not check."""
    implementation, problem, device = candidate.implementation, call.problem, call.device
    conditions: list[Condition] = []
    if not problem.traits["aligned"]:
        # a plan for unaligned tensors may be slower: it must not answer calls with aligned ones
        conditions.append(AlignedLike.of(call.arguments))
    elif refusals(implementation, problem.misaligned(), device):
        conditions.append(aligned)
    if not implementation.capturable and device.type == "cuda":
        conditions.append(not_capturing)
    if not implementation.deterministic:
        conditions.append(determinism_not_asked)
    return tuple(conditions)
