"""Bound ops: all functions by which one op is called, explained and traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch._ops import OpOverload

from ..arguments.schema import Kind, kind_of, tensors_in
from ..contract import Op, canonical_call
from ..discovery.catalog import Catalog
from ..errors import RegistryError, UnsupportedError
from ..tracing import constant_while_tracing, let_through, refuse
from .call_answers import Asked
from .data_checks import data_check
from .explain import Explanation, explained
from .forcing import Forcing
from .hit.hot_path import Around, hot_path
from .hit.packed_form import check_form
from .hit.table import Entry
from .miss import Miss
from .mode import Mode
from .recording import recorder
from .resolve.candidates import Plans
from .resolve.winners import Winners
from .torch_side import operators as torch_ops
from .torch_side.gradients import NO_BACKWARD_HINT, CallGradients, no_backward
from .torch_side.states import gradient_needed, keeping_dtype, unusual
from .torch_side.torch_private import unseen_by_modes


class BoundOp:
    """One op with its plans; ``call`` is the function that ``registry.op(name)`` returns.

    ``checking``: each call's data are checked, if the op declares a check of them.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (a part of the dispatcher each)
        self,
        op: Op,
        catalog: Catalog,
        winners: Callable[[], Winners],
        forcing: Forcing,
        follow: Callable[[], None],
        find: Callable[[str], BoundOp],
        watch: recorder.Recorder,
        mode: Callable[[], Mode],
        checking: bool = False,
    ) -> None:
        self.op = op
        self.gradients = CallGradients(op, find, forcing, lambda: torch_ops.reference_gradient_of(self))
        self.torch_op: OpOverload[..., Any] | None = None
        """torch's operator of the op; None until torch.compile traces a call."""
        self.ready_to_trace = _definer(self)
        self.mode = mode
        self._forcing = forcing
        self._reference = op.reference
        self.plans = Plans(op, catalog, winners, mode)
        serves = lambda: torch_ops.serves(self)  # noqa: E731 - a method cannot be passed before its object is complete
        check = data_check(op) if checking else None
        self.checked = check is not None
        self.miss = Miss(self.plans, forcing, follow, self.gradients, watch, mode, serves, check)
        self.table = self.miss.table
        self.may_retry = self.miss.may_retry
        miss = self.miss
        self.watchers = watchers = (forcing, watch)
        around = Around(
            self.table, watchers, self.slow, miss.another_size, self.generic, self.traced, miss.may_retry,
            miss.profiles.run,
        )  # fmt: skip
        hot = hot_path(op, around, checked=check is not None)
        self.call = hot.call
        """Run the op on these arguments by the fastest known implementation."""
        self.taken = hot.taken
        """``call`` with the arguments as a tuple and a dict, for a caller that knows torch.compile is not tracing."""
        self.flat = hot.flat
        """``call`` in the schema's own terms, e.g. with the tensors of a PackedWeight. Not traced."""

    @property
    def misses(self) -> int:
        return self.miss.count

    def kept(self, values: tuple[Any, ...]) -> Entry | None:
        """The table entry that answers a call of the schema's values in order; None without one."""
        return self.miss.entries.known(self.table, values)

    def explain(self, *args: Any, **attributes: Any) -> Explanation:
        """Explain what ``call`` runs with these arguments, and why. Builds that plan; launches nothing."""
        check_form(self.op, args, attributes)
        if (other := canonical_call(self.op, args, attributes)) is not None:
            args, attributes = (), dict(other.values)
        if self.op.flatten is not None:
            args, attributes = self.op.flattened(args, attributes)
        return self.explain_flat(args, attributes)

    def explain_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Explanation:
        """``explain`` in the schema's own terms."""
        with unseen_by_modes():
            return self._explained(args, attributes)

    def _explained(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Explanation:
        asked = Asked(self.op, self.op.parsed.bind(args, attributes))
        forced = self._forcing.of(self.op.name)
        entry = None if unusual(asked.tensors) else self.miss.known(forced, args, attributes)
        kept = [] if entry is None else [entry.resolved]
        unready: list[str] = []
        for resolved in itertools.chain(kept, self.miss.answers.to(asked, forced, self.plans.generation, telling=True)):
            reason = resolved.plan.prepared.unready(asked.values) if resolved.plan else ""
            if not reason:
                told = replace(resolved, misses=(*resolved.misses, *dict.fromkeys(unready)))
                return explained(self.plans, told, asked.values, self.mode())
            unready.append(f"{resolved.choice.candidate} is not ready: {reason}")
        raise AssertionError("resolution ends with the reference, or with what was forced")

    def clear(self) -> None:
        """Forget every plan, e.g. because there are new winners."""
        self.miss.clear()

    def generic(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """Answer a call of any form. Raises the schema's errors."""
        check_form(self.op, args, attributes)
        if self.op.flatten is not None and self.miss.traced_by_fx(args, attributes):
            args, attributes = self.op.flattened(args, attributes)
            return self.miss.answer(args, attributes)
        other = canonical_call(self.op, args, attributes)
        return self.run(self.op.bind(args, attributes)) if other is None else other.answered(self.call)

    def slow(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """Answer a call that the hot path does not know; one in another form by its canonical call."""
        if self.op.forms is not None and not self.miss.traced_by_fx(args, attributes):
            other = canonical_call(self.op, args, attributes)
            if other is not None:
                return other.answered(self.call)
        return self.miss.answer(args, attributes)

    def run(self, values: tuple[Any, ...]) -> Any:
        """Answer a call by all its values in the schema's order."""
        args, named = self._as_called(values)
        return self.flat(*args, **named)

    def warm(self, values: tuple[Any, ...]) -> None:
        """Run the op on these values once, and keep the plan. The call is not counted or recorded."""
        self.miss.warm(*self._as_called(values), values)

    def _as_called(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = dict(zip(self.op.parsed.names, values, strict=True))
        named = {one.name: given.pop(one.name) for one in self.op.parsed.parameters if one.keyword_only}
        return tuple(given.values()), named

    def traced(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """A call that torch.compile traces: torch's operator, or the reference if that serves another dispatcher."""
        other = canonical_call(self.op, args, attributes)
        if other is not None:
            return other.answered(self._traced_by_name)
        if self.op.flatten is not None:
            args, attributes = self.op.flattened(args, attributes)
        return self.traced_flat(args, attributes)

    def _traced_by_name(self, **values: Any) -> Any:
        return self.traced_flat((), values)

    def traced_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """``traced`` in the schema's own terms."""
        values = [*args, *attributes.values()]
        # torch.compile cannot trace most of a schema's Python: the types are checked by a function that it only calls
        if not self.ready_to_trace(tuple([kind_of(value) for value in values]), tuple(attributes)):
            return keeping_dtype(self._reference, tensors_in(values))(*self.op.parsed.bind(args, attributes))
        if self.op.backward is None and gradient_needed(tensors_in(values)):
            refuse(no_backward(self.op.name), hint=NO_BACKWARD_HINT, kind=UnsupportedError)
        assert self.torch_op is not None
        return self.torch_op(*args, **attributes)


def _definer(bound: BoundOp) -> Callable[[tuple[Kind, ...], tuple[str, ...]], bool]:
    """A function that checks a call's form and defines torch's operator before torch.compile traces the call.

    It returns False if the reference is to be traced: torch's operators serve another dispatcher, or the mode is
    "reference" and the op has no backward, so that only the traced reference has a gradient.
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
