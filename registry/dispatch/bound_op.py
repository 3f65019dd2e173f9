"""One op's calls: the hot path, and the slow path for whatever the hot path does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch._ops import OpOverload
from torch.fx import Proxy

from ..arguments.schema import Kind, kind_of, tensors_in
from ..contract import Op
from ..device import Device
from ..discovery.catalog import Catalog
from ..errors import CompileError, NotLaunchedError, NotReadyError, RegistryError, UnsupportedError
from ..problem import Problem
from ..tracing import constant_while_tracing, let_through, refuse
from .entries import Entries
from .explain import Explanation, explained
from .forcing import Forced, Forcing
from .hit.counter import Counter
from .hit.hot_path import Around, hot_path
from .hit.packed_form import check_form
from .hit.table import Table
from .mode import REFERENCE_MODE, Mode
from .recording import recorder
from .resolve.candidates import NOT_FOR_US, Attempt, Call, Plans, Resolved, place_of, reference
from .resolve.ranges import Ranged, Ranges
from .resolve.winners import Winners
from .torch_side import operators as torch_ops
from .torch_side.gradients import NO_BACKWARD_HINT, Gradients, no_backward
from .torch_side.situation import (
    capturing,
    counting_writes,
    gradient_needed,
    in_dual_level,
    keeping_dtype,
    nothing_to_launch,
    traced_by_torch,
    unseen_by_modes,
    unusual,
)

_NOT_ENQUEUED = (NotReadyError, CompileError, UnsupportedError)
"""Faults after which a plan has written nothing but its own outputs."""

_NOT_ENQUEUED_MUTATING = (NotReadyError, NotLaunchedError)
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
        follow: Callable[[], None],
        find: Callable[[str], BoundOp],
        watch: recorder.Recorder,
        mode: Callable[[], Mode],
    ) -> None:
        self.op = op
        self.gradients = Gradients(op, find, forcing)
        self.torch_op: OpOverload[..., Any] | None = None
        """torch's operator of the op, once torch.compile has met a call."""
        self.ready_to_trace = _definer(self)
        self._follow = follow
        self.plans = Plans(op, catalog, winners)
        self.ranges = Ranges(op, self.plans)
        self.entries = Entries(op)
        self.table = Table(len(self.entries.plain))
        self._missed = Counter()
        self._forcing = forcing
        self._watch = watch
        self.mode = mode
        self._forced_tables: dict[str, Table] = {}
        self._flatten = op.flatten
        self._reference = op.reference
        self._names = op.parsed.names
        self._not_enqueued = _NOT_ENQUEUED_MUTATING if op.parsed.mutates else _NOT_ENQUEUED
        hot = hot_path(op, Around(self.table, (forcing, watch), self._slow, self.generic, self.traced, self._may_retry))
        self.call = hot.call
        """Run the op on these arguments by whatever is the fastest known implementation here."""
        self.taken = hot.taken
        """The same with the arguments as a tuple and a dict, for who knows that torch.compile is not tracing."""
        self.flat = hot.flat
        """``call`` in the schema's own terms, e.g. with the tensors of a PackedWeight. Not traced."""

    @property
    def misses(self) -> int:
        """Calls that went the slow path."""
        return self._missed.value

    def explain(self, *args: Any, **attributes: Any) -> Explanation:
        """What ``call`` does with these arguments, and why. Builds the plan that it would build; launches nothing."""
        check_form(self.op, args, attributes)
        if self._flatten is not None:
            args, attributes = self._flatten(*args, **attributes)  # type: ignore[assignment]
        return self.explain_flat(args, attributes)

    def explain_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Explanation:
        """The same in the schema's own terms."""
        with unseen_by_modes():
            return self._explained(args, attributes)

    def _explained(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Explanation:
        values = self.op.parsed.bind(args, attributes)
        forced = self._forcing.of(self.op.name)
        strange = unusual(tensors_in(values))
        entry = None if strange else self.entries.known(self._table_of(forced), self._given(args, attributes))
        if entry is not None:
            return explained(self.plans, self.ranges.told(entry.resolved, values), values, self.mode())
        resolved = next(self._answers(values, forced, self.plans.generation, telling=True))
        return explained(self.plans, resolved, values, self.mode())

    def clear(self) -> None:
        """Forget every plan, e.g. because there are new winners."""
        # plans first: a table that is new by then must not take in what was recalled before
        self.plans.clear()
        self.ranges.clear()
        self._forced_tables = {}
        self.table.clear()

    def renew_locks(self) -> None:
        """In a forked child."""
        self.plans.renew_locks()
        for table in (self.table, *self._forced_tables.values()):
            table.renew_locks()

    def generic(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """Answer a call of whatever form. Raises the schema's errors."""
        check_form(self.op, args, attributes)
        if self._flatten is not None and self._traced_by_fx(args, attributes):
            args, attributes = self._flatten(*args, **attributes)
            return self._slow(args, attributes)
        return self.run(self.op.bind(args, attributes))

    def run(self, values: tuple[Any, ...]) -> Any:
        """Answer a call by all its values in the schema's order."""
        args, named = self._as_called(values)
        return self.flat(*args, **named)

    def warm(self, values: tuple[Any, ...]) -> None:
        """Answer such a call by a plan that is kept for its very shape. It does not count as the program's.

        A plan for many row counts is not enough: it answers in one mode of torch, and a capture in another mode looks
        for that of the shape.
        """
        kept = self.plans.recall(place_of(self.op.arguments(values)), self._forcing.of(self.op.name))
        if kept is None:
            self._slow(*self._as_called(values), warming=True)

    def _as_called(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = dict(zip(self._names, values, strict=True))
        named = {one.name: given.pop(one.name) for one in self.op.parsed.parameters if one.keyword_only}
        return tuple(given.values()), named

    # --- the slow path

    def _slow(self, args: tuple[Any, ...], attributes: Mapping[str, Any], *, warming: bool = False) -> Any:
        if self._traced_by_fx(args, attributes):
            return torch_ops.define(self.op)(*args, **attributes)
        self._missed.hit()
        self._follow()
        forced = self._forcing.of(self.op.name)
        table = self._table_of(forced)
        generations = table.generation, self.plans.generation
        values = self.op.parsed.bind(args, attributes)
        tensors = tensors_in(values)
        strange = unusual(tensors)
        if strange and traced_by_torch(tensors) and torch_ops.serves(self):
            return torch_ops.called(torch_ops.define(self.op), self.op, values)
        given = self._given(args, attributes)
        # states in which no call takes the hot path, though its entries hold
        watched = self._forcing.active or self._watch.active or in_dual_level()
        if watched and not strange and not warming and (entry := self.entries.known(table, given)):
            try:
                outputs = entry.run(*given)
            except Exception as fault:
                if not self._may_retry(fault, entry.grad, entry.resolved):
                    raise
            else:
                entry.hit()
                self._report(values)
                return outputs
        outputs, resolved = self._first_that_runs(values, forced, generations[1])
        if not warming:
            resolved.calls.hit()
        if not strange and not warming:
            self._report(values)
        if not strange and not capturing(tensors):
            self.plans.remember(resolved, forced, generations[1])
            # inference tensors, whose changes cannot be followed, have entries of their own: others are not bound
            if not resolved.makeshift or any(tensor.is_inference() for tensor in tensors):
                with unseen_by_modes():
                    self._keep(table, generations[0], given, values, resolved, many=forced is None)
        return outputs

    def _traced_by_fx(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> bool:
        """Whether torch.fx.symbolic_trace is to record this call, as one of torch's operator of the op."""
        symbols = any(isinstance(value, Proxy) for value in (*args, *attributes.values()))
        return symbols and torch_ops.serves(self)

    def _keep(
        self,
        table: Table,
        generation: int,
        given: tuple[Any, ...],
        values: tuple[Any, ...],
        resolved: Resolved,
        *,
        many: bool,
    ) -> None:
        """Let the table answer such calls; with ``many`` those of other row counts too, where that is sound."""
        run = self._prepared(resolved, values)
        known = self.entries.known(table, given, anywhere=True) if many else None
        if known is not None:
            resolved = self.ranges.widened(resolved, known.resolved)
        elif many and (ranged := self.ranges.of(values, resolved)):
            self.entries.add(table, generation, given, values, replace(ranged, run=self._prepared(ranged, values)))
            resolved = replace(resolved, choice=ranged.choice)
        self.entries.add(table, generation, given, values, replace(resolved, run=run))

    def _may_retry(self, fault: Exception, grad: bool | None, resolved: Resolved) -> bool:
        """Whether a hit that raised ``fault`` is resolved anew, where what failed is put aside.

        A plan for many row counts may meet one that it cannot run. Not so where autograd records (``grad``): what
        raised may be a hook on what is saved.
        """
        if isinstance(fault, self._not_enqueued):
            return True
        return isinstance(resolved, Ranged) and grad is None and not isinstance(fault, NOT_FOR_US)

    def _first_that_runs(self, values: tuple[Any, ...], forced: Forced | None, generation: int) -> tuple[Any, Resolved]:
        makeshift = False
        for resolved in _unseen(self._answers(values, forced, generation)):
            attempt = Attempt(resolved)
            try:
                outputs = self._prepared(replace(resolved, run=attempt), values)(*values)
            except Exception as fault:
                own, attempt.fault = fault is attempt.fault, None  # they hold each other, and the tensors
                if not own:
                    raise
                self._excuse(resolved, fault, forced, generation)
                makeshift = makeshift or isinstance(fault, NotReadyError)
            else:
                return outputs, replace(resolved, makeshift=makeshift or resolved.makeshift)
        raise AssertionError("resolution ends with the reference, or with what was forced")

    def _given(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a sound call in the schema's order as they were given: not coerced."""
        named = {**dict(zip(self._names, args, strict=False)), **attributes}
        return tuple(named.get(parameter.name, parameter.default) for parameter in self.op.parsed.parameters)

    def _report(self, values: tuple[Any, ...]) -> None:
        """Tell who watches that this was called, if there was anything to launch."""
        if self._watch.active and not nothing_to_launch(tensors_in(values)):
            self._watch.seen(self.op.pose(self.op.arguments(values)))

    def _answers(
        self, values: tuple[Any, ...], forced: Forced | None, generation: int, telling: bool = False
    ) -> Iterator[Resolved]:
        """What may answer these values, best first; the first that runs does. ``telling``: none is going to run."""
        tensors = tensors_in(values)
        if reason := unusual(tensors):
            yield self._plain_torch(reason, None, None if self.mode() == "reference" else forced)
            return
        arguments = self.op.arguments(values)
        problem = self.op.pose(arguments)
        if reason := nothing_to_launch(tensors):
            yield reference(self.op, reason, problem)
            return
        if self.mode() == "reference":
            yield reference(self.op, REFERENCE_MODE, problem)
            return
        if gradient_needed(tensors) and (refusal := self.gradients.refusal(values)):
            raise refusal
        strict = self.mode() == "strict" and not telling
        place = place_of(arguments)
        known = self.plans.recall(place, forced)
        if known is not None and all(condition(*values) for condition in known.conditions):
            yield known
        if capturing(tensors):
            reason = "a CUDA stream is capturing and this call's plan is not in memory: call it once before"
            if strict:
                raise NotReadyError(f"{problem}: {reason}", hint="registry.warmup(...) builds plans ahead")
            yield self._plain_torch(reason, problem, forced)
            return
        device = Device.of(tensors[0].device)
        yield from self.plans.candidates(Call(problem, arguments, device, place), forced, generation, strict)

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

    def _table_of(self, forced: Forced | None) -> Table:
        if forced is None:
            return self.table
        tables = self._forced_tables
        if forced.key not in tables and len(tables) >= _MOST_FORCED:
            tables.pop(next(iter(list(tables))), None)  # a list: other threads add to it meanwhile
        return tables.setdefault(forced.key, Table(len(self.entries.plain)))

    def _prepared(self, resolved: Resolved, values: tuple[Any, ...]) -> Callable[..., Any]:
        """What answers these values, with all that torch expects of an operation: its dtype, gradient and version."""
        tensors = tensors_in(values)
        run = keeping_dtype(resolved.run, tensors)
        if self.op.parsed.mutates:
            run = counting_writes(run, self.op.parsed)
        # plain torch operations are recorded one by one
        return self.gradients.recording(run) if not resolved.plain_torch and gradient_needed(tensors) else run

    def traced(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """What torch.compile sees: torch's operator, or the reference where torch's operators run for another."""
        if self._flatten is not None:
            args, attributes = self._flatten(*args, **attributes)
        return self.traced_flat(args, attributes)

    def traced_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """The same in the schema's own terms."""
        values = [*args, *attributes.values()]
        # torch.compile follows little of a schema's Python: what can be told from types is looked at out of its sight
        if not self.ready_to_trace(tuple([kind_of(value) for value in values]), tuple(attributes)):
            return keeping_dtype(self._reference, tensors_in(values))(*self.op.parsed.bind(args, attributes))
        if self.op.backward is None and gradient_needed(tensors_in(values)):
            refuse(no_backward(self.op.name), hint=NO_BACKWARD_HINT, kind=UnsupportedError)
        assert self.torch_op is not None
        return self.torch_op(*args, **attributes)


def _unseen(answers: Iterator[Resolved]) -> Iterator[Resolved]:
    """Each is found and built out of sight of TorchFunctionModes, and runs in theirs."""
    while True:
        with unseen_by_modes():
            resolved = next(answers, None)
        if resolved is None:
            return
        yield resolved


def _definer(bound: BoundOp) -> Callable[[tuple[Kind, ...], tuple[str, ...]], bool]:
    """Checks a call's form and defines torch's operator before torch.compile traces the call.

    False where the reference is to be traced: torch's operators run another dispatcher's calls, or nothing but the
    reference has a gradient and it is what was asked for.
    """

    def define(kinds: tuple[Kind, ...], names: tuple[str, ...]) -> bool:
        plain = bound.op.backward is None and bound.mode() == "reference"
        if plain or not torch_ops.serves(bound):
            return False
        count = len(kinds) - len(names)
        try:
            bound.op.parsed.check_kinds(kinds[:count], dict(zip(names, kinds[count:], strict=True)))
            bound.torch_op = torch_ops.define(bound.op)
        except RegistryError as fault:
            raise let_through(fault) from None
        return True

    return constant_while_tracing(define)
