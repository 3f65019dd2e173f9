"""One op's calls: the hot path, and the slow path for whatever the hot path does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from ..contract import Op
from ..device import Device
from ..discovery import Catalog
from ..errors import CompileError, NotReadyError, UnsupportedError
from ..problem import Problem
from .explain import Explanation, explained
from .forcing import Forced, Forcing
from .guards import matcher
from .resolved import NOT_FOR_US, Call, Plans, Resolved, place_of, reference, tensors_of
from .situation import autocast_active, capturing, gradient_needed, unusual, without_autocast
from .table import Entry, Table, form_of
from .torch_private import dispatch_modes
from .winners import Winners

_NOT_ENQUEUED = (NotReadyError, CompileError, UnsupportedError)
"""Faults after which a plan has written nothing but its own outputs."""

_NOT_ENQUEUED_MUTATING = (NotReadyError,)
"""The same for an op that mutates: of several launches the second may be the one that is refused."""

_MOST_FORCED = 32
"""Demands of ``using`` whose tables are kept."""


class BoundOp:
    """``call`` is what ``registry.op(name)`` returns."""

    def __init__(
        self,
        op: Op,
        catalog: Catalog,
        winners: Callable[[], Winners],
        forcing: Forcing,
        follow: Callable[[], None] = lambda: None,
    ) -> None:
        self.op = op
        self._follow = follow
        self.plans = Plans(op, catalog, winners)
        self.table = Table()
        self.misses = 0
        """Calls that went the slow path."""
        self._entries = self.table.entries
        self._forcing = forcing
        self._forced_tables: dict[str, Table] = {}
        self._flatten = op.flatten
        self._reference = op.reference
        self._names = op.parsed.names
        self._not_enqueued = _NOT_ENQUEUED_MUTATING if op.parsed.mutates else _NOT_ENQUEUED

    def call(self, *args: Any, **attributes: Any) -> Any:
        """Run the op on these arguments by whatever is the fastest known implementation here."""
        if is_dynamo_compiling():
            return self.traced(args, attributes)
        if self._flatten is not None:
            args, attributes = self._flatten(*args, **attributes)  # type: ignore[assignment]  # only read from here on
        try:
            if attributes:
                given = (*args, *attributes.values())
                entries = self._entries[len(args), *attributes][given[0].shape]
            else:
                given = args
                entries = self._entries[len(args)][args[0].shape]
        except (LookupError, AttributeError, TypeError, RuntimeError):  # a nested tensor's shape raises the last
            entries = ()
        if not dispatch_modes() and forward_ad._current_level < 0 and not self._forcing.active:
            for matches, run, rest, grad, _ in entries:
                if matches(*given) and (grad is None or grad is is_grad_enabled()):
                    try:
                        return run(*given, *rest)
                    except self._not_enqueued:
                        break
        return self._slow(args, attributes)

    def explain(self, *args: Any, **attributes: Any) -> Explanation:
        """What ``call`` does with these arguments, and why. Builds the plan that it would build; launches nothing."""
        if self._flatten is not None:
            args, attributes = self._flatten(*args, **attributes)  # type: ignore[assignment]
        values = self.op.parsed.bind(args, attributes)
        forced = self._forcing.of(self.op.name)
        entry = None if unusual(tensors_of(values)) else self._known(self._table_of(forced), args, attributes)
        if entry is None:
            return explained(self.plans, next(self._answers(values, forced, self.plans.generation)), values)
        resolved: Resolved = entry.resolved
        return explained(self.plans, resolved, values)

    def clear(self) -> None:
        """Forget every plan, e.g. because there are new winners."""
        # plans first: a table that is new by then must not take in what was recalled before
        self.plans.clear()
        self._forced_tables = {}
        self.table.clear()

    # --- the slow path

    def _slow(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        self.misses += 1
        self._follow()
        forced = self._forcing.of(self.op.name)
        table = self._table_of(forced)
        generations = table.generation, self.plans.generation
        values = self.op.parsed.bind(args, attributes)
        tensors = tensors_of(values)
        strange = unusual(tensors)
        if self._forcing.active and not strange and (entry := self._known(table, args, attributes)):
            with suppress(*self._not_enqueued):
                return entry.run(*args, *attributes.values(), *entry.rest)
        outputs, resolved = self._first_that_runs(values, forced, generations[1])
        if not strange and not capturing(tensors):
            self.plans.remember(resolved, forced, generations[1])
            # inference tensors, whose changes cannot be followed, have entries of their own: others are not bound
            if not resolved.makeshift or any(tensor.is_inference() for tensor in tensors):
                run = _keeping_dtype(resolved, tensors)
                self._add(table, generations[0], (args, attributes), values, replace(resolved, run=run))
        return outputs

    def _first_that_runs(self, values: tuple[Any, ...], forced: Forced | None, generation: int) -> tuple[Any, Resolved]:
        tensors = tensors_of(values)
        makeshift = False
        for resolved in self._answers(values, forced, generation):
            try:
                outputs = _keeping_dtype(resolved, tensors)(*values)
                resolved.check(outputs)
            except Exception as fault:
                self._excuse(resolved, fault, forced, generation)
                makeshift = makeshift or isinstance(fault, NotReadyError)
            else:
                return outputs, replace(resolved, makeshift=makeshift or resolved.makeshift)
        raise AssertionError("resolution ends with the reference, or with what was forced")

    def _known(self, table: Table, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Entry | None:
        return table.find(form_of(args, attributes), (*args, *attributes.values()), is_grad_enabled())

    def _answers(self, values: tuple[Any, ...], forced: Forced | None, generation: int) -> Iterator[Resolved]:
        """What may answer these values, best first; the first that runs does."""
        tensors = tensors_of(values)
        if reason := unusual(tensors):
            yield self._plain_torch(reason, None, forced)
            return
        arguments = self.op.arguments(values)
        problem = self.op.problem(arguments)
        if reason := _nothing_to_launch(tensors):
            yield reference(self.op, reason, problem)
            return
        if gradient_needed(tensors):
            yield self._plain_torch("an input needs a gradient, which only the reference records", problem, forced)
            return
        place = place_of(arguments)
        known = self.plans.recall(place, forced)
        if known is not None and all(condition(*values) for condition in known.conditions):
            yield known
        if capturing(tensors):
            reason = "a CUDA stream is capturing and this call's plan is not in memory: call it once before"
            yield self._plain_torch(reason, problem, forced)
            return
        device = Device.of(tensors[0].device)
        yield from self.plans.candidates(Call(problem, arguments, device, place), forced, generation)

    def _plain_torch(self, reason: str, problem: Problem | None, forced: Forced | None) -> Resolved:
        if forced is not None:
            raise UnsupportedError(
                f"{self.op.name}: {forced.implementation} is forced, but {reason}",
                hint="leave the registry.using(...) block for this call",
            )
        return reference(self.op, reason, problem)

    def _excuse(self, resolved: Resolved, fault: Exception, forced: Forced | None, generation: int) -> None:
        """Put aside what failed; raise when that is not for dispatch to hide."""
        candidate = resolved.choice.candidate
        launched = self.op.parsed.mutates and not isinstance(fault, self._not_enqueued)
        if candidate is None or launched or isinstance(fault, NOT_FOR_US):
            raise fault
        self.plans.failed(resolved.place, candidate, fault, forced, generation)

    def _add(
        self,
        table: Table,
        generation: int,
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        values: tuple[Any, ...],
        resolved: Resolved,
    ) -> None:
        args, attributes = call
        given = (*args, *attributes.values())
        if not given or not isinstance(given[0], torch.Tensor):
            return
        names = (*self._names[: len(args)], *attributes)
        run, rest = _arranged(
            resolved.run, dict(zip(names, given, strict=True)), dict(zip(self._names, values, strict=True))
        )
        grad = is_grad_enabled() if any(tensor.requires_grad for tensor in tensors_of(values)) else None
        entry = Entry(matcher(given, resolved.conditions), run, rest, grad, resolved)
        table.add(form_of(args, attributes), given[0].shape, entry, generation)

    def _table_of(self, forced: Forced | None) -> Table:
        if forced is None:
            return self.table
        tables = self._forced_tables
        if forced.key not in tables and len(tables) >= _MOST_FORCED:
            tables.pop(next(iter(tables)), None)
        return tables.setdefault(forced.key, Table())

    def traced(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """What torch.compile sees: the reference, in line."""
        if self._flatten is not None:
            args, attributes = self._flatten(*args, **attributes)
        return self._reference(*self.op.parsed.bind(args, attributes))


def _nothing_to_launch(tensors: list[torch.Tensor]) -> str:
    if not tensors:
        return "there is no tensor among the arguments"
    if any(tensor.numel() == 0 for tensor in tensors):
        return "a tensor has no elements"
    kind = tensors[0].device.type
    return "" if kind in {"cpu", "cuda"} else f"no implementation runs on {kind}"


def _keeping_dtype(resolved: Resolved, tensors: list[torch.Tensor]) -> Callable[..., Any]:
    """An op keeps its dtype under autocast: what is made of torch's operations runs with autocast off."""
    if not autocast_active(tensors):
        return resolved.run
    return without_autocast(resolved.run, tensors[0].device.type)


def _arranged(
    run: Callable[..., Any], given: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``(run, rest)`` so that ``run(*given, *rest)`` gets the schema's values in order."""
    in_order = list(given) == list(values)[: len(given)]
    if in_order and all(given[name] is values[name] for name in given):
        return run, tuple(values.values())[len(given) :]
    places = {name: place for place, name in enumerate(given) if isinstance(given[name], torch.Tensor)}
    # a tensor always comes from the call, so that the table keeps no argument alive
    sources = [(places.get(name, -1), None if name in places else value) for name, value in values.items()]

    def arranged(*new: Any) -> Any:
        return run(*[new[place] if place >= 0 else value for place, value in sources])

    return arranged, ()
