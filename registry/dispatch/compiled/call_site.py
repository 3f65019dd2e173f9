"""Call sites: the functions by which code that Inductor generated calls an op, with its plan at hand.

A call site always gets tensors of one signature, since Inductor generates code for static shapes. So it needs no guard
on them: torch's operator answers its first call, and the plan that this call has built answers the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from ...contract import Op
from ..hit.guards import Condition
from ..hit.table import Entry
from ..resolve.candidates import Plans, place_of
from ..resolve.resolved import Resolved
from ..torch_side import operators
from ..torch_side.states import counting_writes
from ..torch_side.torch_private import dispatch_modes, profiler

_SERVING = operators.SERVING


class Callee(Protocol):
    """The part of a BoundOp that compiled calls use; see ``registry.dispatch.bound_op``.

    ``checked``: the data of each call are checked. ``watchers``: while one is ``active``, each call is resolved.
    """

    op: Op
    plans: Plans
    checked: bool
    watchers: tuple[Any, Any]
    may_retry: Callable[[Exception, Resolved, tuple[Any, ...]], bool]
    kept: Callable[[tuple[Any, ...]], Entry | None]


class _Settled(NamedTuple):
    """The plan of a call site, with everything that must stay as it was when the plan was found."""

    run: Callable[..., Any]
    resolved: Resolved
    conditions: tuple[Condition, ...]
    hit: Callable[[], object]
    dispatcher: operators.Dispatches | None
    forcing: Any
    watch: Any
    failures: Any
    generation: int


def call_site(name: str) -> Callable[..., Any]:
    """``call(*values)`` for one place of a program: the op's values in the schema's order, always alike but for data.

    It calls the plan directly. torch's operator of the op, which resolves the call, answers while a ``using`` block, a
    recording, a profiler or a dispatch mode is active, after winners or settings have changed, and for tensors that the
    plan does not accept, e.g. because they are not aligned as those of the first call.
    """
    settled: _Settled | None = None
    unsettled = 0

    def call(*values: Any) -> Any:
        nonlocal settled, unsettled
        known = settled
        holds = (
            known is not None
            and known.generation == known.failures.generation
            and known.dispatcher is _SERVING.dispatcher
        )
        if (
            holds
            and known is not None
            and not (known.forcing.active or known.watch.active or profiler._is_profiler_enabled or dispatch_modes())
            and (not known.conditions or all(condition(*values) for condition in known.conditions))
        ):
            try:
                outputs = known.run(*values)
            except Exception as fault:
                settled = None
                if not cast("Callee", _bound(name)).may_retry(fault, known.resolved, values):
                    raise
            else:
                known.hit()
                return outputs
        # before the call, which may change the arguments that it writes to
        outputs = operators.overload_of(name)(*values)
        if not holds:
            unsettled += 1
            # ever more seldom, where no plan is kept for the call: to look for one takes longer than the call
            if unsettled & (unsettled - 1) == 0:
                settled = _settled(name, values)
                unsettled = 0 if settled else unsettled
        return outputs

    return call


def _bound(name: str) -> Any:
    return operators.serving_dispatcher().bound(name)


def _settled(name: str, values: tuple[Any, ...]) -> _Settled | None:
    """The plan that has just answered this call; None if no plan is kept for it."""
    callee: Callee = _bound(name)
    op, plans = callee.op, callee.plans
    generation = plans.generation
    forcing, watch = callee.watchers
    if callee.checked or forcing.active or watch.active:
        return None
    entry = callee.kept(values)
    if entry is not None:
        run, resolved = entry.run, entry.resolved
    else:
        resolved = plans.recall(place_of(op.arguments(op.parsed.coerced(values))), None)
        if resolved is None:
            return None
        run = counting_writes(resolved.run, op.parsed) if op.parsed.mutates else resolved.run
    if resolved.plan is None or resolved.makeshift or resolved.plain_torch:
        return None
    return _Settled(
        run,
        resolved,
        resolved.conditions,
        resolved.calls.hit,
        _SERVING.dispatcher,
        forcing,
        watch,
        plans.failures,
        generation,
    )
