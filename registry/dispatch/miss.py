"""The miss: answers calls that the hot path does not know, and adds table entries for further calls like them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Proxy

from ..device import Device
from ..errors import NotLaunchedError, NotReadyError
from ..problem import Arguments
from .call_answers import Answers, Asked
from .data_checks import DataCheck, refuse_wrong_data
from .forcing import Forced, Forcing
from .hit.call_parts import without_lists
from .hit.counter import Counter
from .hit.entries import EntryMaker
from .hit.table import Entry, Table
from .miss_reports import MissReports
from .mode import Mode
from .recording import recorder
from .resize import Families
from .resolve.candidates import Plans, passes, place_of
from .resolve.resolved import Attempt, Resolved
from .shared_memory import check_apart
from .torch_side import operators as torch_ops
from .torch_side.distributed import with_weights_replicated
from .torch_side.gradients import CallGradients
from .torch_side.profiles import Profiles
from .torch_side.states import (
    counting_writes,
    gradient_needed,
    in_dual_level,
    keeping_dtype,
    strange_class,
    traced_by_torch,
    unusual,
)
from .torch_side.tensor_classes import keeping_class
from .torch_side.torch_private import function_modes, profiler, unseen_by_modes

_NOT_ENQUEUED = (NotReadyError, NotLaunchedError)
"""Faults raised before a plan has enqueued anything. Other faults may come from its second launch, after the first."""

_MOST_FORCED = 32
"""The most implementations forced by ``using`` (with their configs) whose tables are kept."""


class Miss:
    """The slow path of one op, with its plans and the tables that the hot path reads.

    ``follow`` brings the dispatcher up to date; ``serves()`` is True if torch's operator of the op uses this Miss.
    ``check_data`` checks the contents of each call's tensors; with it, all calls must come here.
    """

    def __init__(
        self,
        plans: Plans,
        forcing: Forcing,
        follow: Callable[[], None],
        gradients: CallGradients,
        watch: recorder.Recorder,
        mode: Callable[[], Mode],
        serves: Callable[[], bool],
        check_data: DataCheck | None = None,
    ) -> None:
        op = plans.op
        self.plans = plans
        self._failures = plans.failures
        self.entries = EntryMaker(op.parsed)
        self.table = Table(len(self.entries.parts.plain))
        self.families = Families(plans, op.parsed, self.entries, gradients)
        self.profiles = Profiles(torch_ops.qualified_name(op))
        self._op = op
        self._forcing = forcing
        self._follow = follow
        self.answers = Answers(plans, gradients, mode)
        self._gradients = gradients
        self._watch = watch
        self._mode = mode
        self._reports = MissReports(op, plans, watch, mode)
        self._serves = serves
        self._check_data = check_data
        self._missed = Counter()
        self._forced_tables: dict[str, Table] = {}
        self._names = op.parsed.names

    @property
    def count(self) -> int:
        """The number of calls that were answered here instead of by the hot path."""
        return self._missed.value

    def clear(self) -> None:
        """Forget every plan, e.g. because there are new winners."""
        # plans first, so that no old plan can be recalled and added to the new table
        self.plans.clear()
        self.families.clear()
        self._forced_tables = {}
        self.table.clear()

    # --- one call

    def answer(self, args: tuple[Any, ...], attributes: Mapping[str, Any], *, warming: bool = False) -> Any:
        """The outputs of a call with the schema's arguments. ``warming``: the call is not counted or recorded.

        Raises the schema's errors, and NotTunedError or NotReadyError in strict mode.
        """
        if self.traced_by_fx(args, attributes):
            return torch_ops.define(self._op)(*args, **attributes)
        self._missed.hit()
        self._follow()
        forced = self._forcing.of(self._op.name)
        table = self._table_of(forced)
        generations = table.generation, self.plans.generation
        asked = Asked(self._op, self._op.parsed.bind(args, attributes))
        strange = unusual(asked.tensors)
        if strange:
            if traced_by_torch(asked.tensors) and self._serves():
                return torch_ops.called(torch_ops.define(self._op), self._op, asked.values)
            return self._resolved_anew(asked, forced, generations[1], warming)[0]
        self._check(asked)
        given = self._given(args, attributes)
        # states in which no call takes the hot path, although its entries hold
        watched = self._forcing.active or self._watch.active or in_dual_level()
        if watched and not warming and (entry := self.entries.known(table, given)):
            answered = self._by_entry(entry, given, asked, forced)
            if answered is not None:
                return answered[0]
        outputs, resolved = self._resolved_anew(asked, forced, generations[1], warming)
        if not warming:
            self._reports.report(asked, resolved)
        if not asked.capturing:
            self._remember(table, generations, given, asked, resolved, forced)
        return outputs

    def _by_entry(self, entry: Entry, given: tuple[Any, ...], asked: Asked, forced: Forced | None) -> tuple[Any] | None:
        """A tuple with the outputs of a call by an entry of its table; None if its plan failed and was put aside."""
        try:
            with self.profiles.around(entry.resolved):
                outputs = entry.run(*given)
        except Exception as fault:
            if not self.may_retry(fault, entry.resolved, given, forced):
                raise
            return None
        entry.hit()
        self._reports.report(asked)
        return (outputs,)

    def _resolved_anew(
        self, asked: Asked, forced: Forced | None, generation: int, warming: bool
    ) -> tuple[Any, Resolved]:
        """The outputs of a call by the first answer that runs, which counts the call unless ``warming``."""
        outputs, resolved = self._first_that_runs(asked, forced, generation)
        if not warming:
            resolved.calls.hit()
        return outputs, resolved

    def _remember(
        self,
        table: Table,
        generations: tuple[int, int],
        given: tuple[Any, ...],
        asked: Asked,
        resolved: Resolved,
        forced: Forced | None,
    ) -> None:
        """Keep an answer for further calls like this one, and for other sizes of it unless it was forced.

        ``generations``: those of the table and of the plans when the call was made.
        """
        self.plans.remember(resolved, forced, generations[1])
        # makeshift answers for inference tensors (whose changes cannot be followed) are kept: only they match
        if not resolved.makeshift or any(tensor.is_inference() for tensor in asked.tensors):
            with unseen_by_modes():
                self._keep(table, generations[0], given, asked, resolved)
                if forced is None:
                    self._add_family(asked, resolved)

    def _check(self, asked: Asked) -> None:
        """Raise InvalidArgumentError if tensors share memory that is written to, or hold what the op refuses."""
        if self._op.parsed.mutates:
            check_apart(self._op.name, self._op.parsed, asked.values)
        if self._check_data is not None:
            self._check_data(asked)

    def another_size(self, values: tuple[Any, ...]) -> tuple[Any] | None:
        """A tuple with the outputs of a call that differs from an earlier one in sizes alone; None for other calls.

        ``values`` are the schema's in order, as they were given, lists as tuples. It must not be called while calls are
        forced or recorded, or while a dispatch mode or a block of forward-mode AD is active.
        """
        families = self.families
        if not families.known or function_modes():
            return None
        self._follow()
        table = self.table
        generations = table.generation, self._failures.generation
        member = families.member(values, table)
        if member is None:
            return None
        run, resolved, make_check, checked, shape, free, family = member
        try:
            outputs = self.profiles.run(resolved, run, *values) if profiler._is_profiler_enabled else run(*values)
            if checked:
                resolved.check(outputs, values)
        except Exception as fault:
            refuse_wrong_data(self._op, values)
            if not self._put_aside(resolved, fault, None, generations[1]):
                raise
            return None
        self._missed.hit()
        hit = resolved.calls.hit
        hit()
        if self._watch.misses.active:
            self._reports.note(resolved)
        answer = family.grad, run, hit, resolved
        self.entries.add_like(table, generations[0], shape, values, free, answer, make_check)
        return (outputs,)

    def _add_family(self, asked: Asked, resolved: Resolved) -> None:
        """Let calls of other sizes be answered like this one, if it is an ordinary call."""
        plain = resolved.plan is not None and not resolved.makeshift and self._mode() == "tuned"
        if plain and keeping_class(keeping_dtype(resolved.run, asked.tensors), asked.tensors) is resolved.run:
            self.families.add(asked.values, asked.arguments, Device.of(asked.tensors[0].device))

    def traced_by_fx(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> bool:
        """True if torch.fx.symbolic_trace is to record this call, as a call of torch's operator of the op."""
        values = (value if isinstance(value, list | tuple) else (value,) for value in (*args, *attributes.values()))
        return any(isinstance(one, Proxy) for each in values for one in each) and self._serves()

    def may_retry(
        self, fault: Exception, resolved: Resolved, values: tuple[Any, ...], forced: Forced | None = None
    ) -> bool:
        """True if a hit that raised ``fault`` may be resolved again, since its plan failed; puts the candidate aside.

        False for a fault that torch raises outside of the plan, e.g. in a hook on saved tensors, and for the reference.
        Raises the op's error for wrong data on the CPU among ``values``, the call's in the schema's order: then the
        plan is not at fault.
        """
        plan = resolved.plan
        if plan is None or not _went_through(fault, plan.call):
            return False
        refuse_wrong_data(self._op, values)
        return self._put_aside(resolved, fault, forced, self.plans.generation)

    def warm(self, args: tuple[Any, ...], attributes: Mapping[str, Any], values: tuple[Any, ...]) -> None:
        """Run a call of these values and keep its plan, unless one is kept. The call is not counted or recorded."""
        kept = self.plans.recall(place_of(self._op.arguments(values)), self._forcing.of(self._op.name))
        if kept is None:
            self.answer(args, attributes, warming=True)

    def _keep(self, table: Table, generation: int, given: tuple[Any, ...], asked: Asked, resolved: Resolved) -> None:
        """Add a table entry that answers further calls like this one."""
        answer = self._prepared(resolved.run, resolved, asked), resolved.calls.hit, resolved
        read = self._read(asked.arguments, resolved)
        self.entries.add(table, generation, (given, asked.values), answer, resolved.conditions, read)

    def _read(self, arguments: Arguments, resolved: Resolved) -> Collection[str]:
        """Names of the attributes that the answer depends on: all that were read until the call ran."""
        if resolved.plan is None:
            return arguments.read
        return arguments.read | resolved.plan.signature.arguments.read | self._op.fake_reads

    def _first_that_runs(self, asked: Asked, forced: Forced | None, generation: int) -> tuple[Any, Resolved]:
        makeshift = False
        for resolved in _unseen(self.answers.to(asked, forced, generation)):
            attempt = Attempt(resolved)
            try:
                with self.profiles.around(resolved):
                    outputs = self._prepared(attempt, resolved, asked)(*asked.values)
            except Exception as fault:
                own, attempt.fault = fault is attempt.fault, None  # they hold each other, and the tensors
                if own and (resolved.plan is not None or _are_plain(asked.tensors)):
                    refuse_wrong_data(self._op, asked.values)
                if not own or not self._put_aside(resolved, fault, forced, generation):
                    raise
                makeshift = makeshift or passes(fault)
            else:
                if resolved.choice.step == "reference":
                    self._reports.warn(resolved, asked)
                return outputs, replace(resolved, makeshift=True) if makeshift else resolved
        raise AssertionError("resolution ends with the reference, or with what was forced")

    def _given(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a valid call in the schema's order as given: not coerced, except for lists as tuples."""
        named = {**dict(zip(self._names, args, strict=False)), **attributes}
        return without_lists([named.get(one.name, one.default) for one in self._op.parsed.parameters])

    def _put_aside(self, resolved: Resolved, fault: Exception, forced: Forced | None, generation: int) -> bool:
        """Put the failed candidate aside. Returns True if another candidate may answer the call.

        False after a launch of a mutating op, or if the reference or the GPU failed.
        """
        plan, candidate = resolved.plan, resolved.choice.candidate
        if plan is None or candidate is None:
            return False
        # a call that differs from another one in sizes alone has no place yet
        place = place_of(plan.signature.arguments) if resolved.place is None else resolved.place
        if not self.plans.failed(place, candidate, fault, forced, generation):
            return False
        if not isinstance(fault, NotReadyError):
            self.table.remove(resolved)
        return not self._op.parsed.mutates or isinstance(fault, _NOT_ENQUEUED)

    def _prepared(self, run: Callable[..., Any], resolved: Resolved, asked: Asked) -> Callable[..., Any]:
        """``run`` with the behaviour of a torch operation: dtype under autocast, gradient and version counters."""
        run = keeping_dtype(run, asked.tensors)
        if self._op.parsed.mutates:
            run = counting_writes(run, self._op.parsed)
        # plain torch operations are recorded one by one
        if resolved.plain_torch:
            return with_weights_replicated(run, self._op, asked.values)
        return keeping_class(self._gradients.recording(run) if gradient_needed(asked.tensors) else run, asked.tensors)

    # --- tables

    def known(self, forced: Forced | None, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Entry | None:
        """The entry that answers a valid call whose tensors are not ``unusual``; None without one."""
        return self.entries.known(self._table_of(forced), self._given(args, attributes))

    def _table_of(self, forced: Forced | None) -> Table:
        if forced is None:
            return self.table
        tables = self._forced_tables
        if forced.key not in tables and len(tables) >= _MOST_FORCED:
            tables.pop(next(iter(list(tables))), None)  # a list: other threads add to it meanwhile
        return tables.setdefault(forced.key, Table(len(self.entries.parts.plain)))


def _are_plain(tensors: Sequence[Any]) -> bool:
    """True if the tensors hold data of their own, which a check may read, and no transform or mode sees it."""
    return not unusual(tensors) and not strange_class(tensors)


def _went_through(fault: Exception, function: Callable[..., Any]) -> bool:
    """True if a fault was raised in a function, or in a function that it called."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code is not function.__code__:
        trace = trace.tb_next
    return trace is not None


def _unseen(answers: Iterator[Resolved]) -> Iterator[Resolved]:
    """The answers, each resolved and built with TorchFunctionModes disabled; they run with these enabled."""
    while True:
        with unseen_by_modes():
            resolved = next(answers, None)
        if resolved is None:
            return
        yield resolved
