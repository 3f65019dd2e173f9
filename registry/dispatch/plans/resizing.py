"""Plans for other sizes of the calls of one family, made of a bound plan without compiling, loading or preparing."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ...artifact import Signature
from ...device import Device
from ...implementation import Implementation, Run, binds_loaded
from ...problem import Arguments, Problem
from .any_size_runs import AnySizeRuns
from .plan import Draft, Plan, scratch_of
from .written_plan import resized_call, resized_made

_NOTHING: frozenset[str] = frozenset()


class Resizing:
    """Makes plans of one plan's candidate for further sizes of arguments of the same kinds.

    All that does not depend on a size is found out here, once. ``row_major``: all tensors of these calls are.
    """

    def __init__(self, plan: Plan, device: Device, runs: AnySizeRuns, *, row_major: bool = False) -> None:
        self.plan = plan
        """The plan itself; it holds the candidate, so that its id stays unique."""
        implementation = plan.candidate.implementation
        self._device = device
        self._runs = runs
        self._outputs = plan.op.output_maker(device.torch, row_major=row_major)
        self._prepares, self._has_scratch = _asks(type(implementation))
        self._run = self._any_size_run() if implementation.any_size else self._loaded_run(implementation)
        self._returns = implementation.returns_outputs

    def at(self, problem: Problem, arguments: Arguments) -> Plan | None:
        """The plan for another size; None if that would need to compile, load or prepare something."""
        like = self.plan
        own = like.signature
        if self._prepares and not like.prepared.serve(problem, arguments, own.arguments):
            return None
        outputs, scratch = self._outputs(arguments), own.scratch
        sizes = resized_made(own.outputs, outputs)
        if self._has_scratch:
            scratch = scratch_of(like.candidate, problem, self._device)
            more = resized_made(own.scratch, scratch)
            sizes = None if sizes is None or more is None else [*sizes, *more]
        signature = Signature(arguments, outputs, scratch, own.prepared)
        # the text of the plan's run does not fit outputs or scratch of other kinds
        run = self._run(problem, signature, None if sizes is None else like.run)
        if run is None:
            return None
        plan = Plan.made(like, problem, signature, run)
        if self._returns:
            call = like.call if run is like.run and not scratch else None
        else:
            call = None if sizes is None else resized_call(like.call, like.run, run, sizes)
        if call is not None:
            plan.__dict__["call"] = call
        return plan

    def _any_size_run(self) -> Callable[[Problem, Signature, Run | None], Run | None]:
        plan, device, runs = self.plan, self._device, self._runs
        known = runs.of(plan)

        def run(problem: Problem, signature: Signature, _like: Run | None) -> Run | None:
            if known is not None and known.serves(problem, signature.arguments):
                return known.run
            return runs.get(Draft(plan.op, plan.candidate, problem, device, signature, plan.prepared))

        return run

    def _loaded_run(self, implementation: Implementation) -> Callable[[Problem, Signature, Run | None], Run | None]:
        if not binds_loaded(type(implementation)):
            return lambda *_: None
        bind, config, device = implementation.bind_loaded, self.plan.candidate.config, self._device
        return lambda problem, signature, like: bind(problem, config, device, signature, like)


@lru_cache(maxsize=1024)
def _asks(kind: type[Implementation]) -> tuple[bool, bool]:
    """(True if implementations of the class may prepare weights, True if they may have scratch)."""
    return kind.prepared is not Implementation.prepared, kind.scratch is not Implementation.scratch
