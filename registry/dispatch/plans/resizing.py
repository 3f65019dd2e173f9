"""Plans for other sizes of the calls of one family, made of a bound plan without compiling, loading or preparing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ...arguments.specs import quick_spec
from ...artifact import LateSignature, Signature
from ...contract import OutputSize
from ...device import Device
from ...implementation import Implementation, Run, binds_loaded
from ...problem import Arguments, Problem, TensorSpec
from .any_size_runs import AnySizeRuns
from .plan import Draft, Plan, scratch_of
from .written_plan import resized_call, resized_made

Resized = tuple[Callable[..., Any], Callable[[], Plan]]
"""A plan for another size: its function, and a function that makes the plan itself, which few calls need."""


class Resizing:
    """Makes plans of one plan's candidate for further sizes of arguments of the same kinds.

    All that does not depend on a size is found out here, once. ``row_major``: all tensors of these calls are.
    """

    def __init__(self, plan: Plan, device: Device, runs: AnySizeRuns, *, row_major: bool = False) -> None:
        self._plan = plan
        self._device = device
        self._runs = runs
        implementation, outputs = plan.candidate.implementation, plan.signature.outputs
        self._output_sizes = plan.op.output_sizes(device.torch, row_major=row_major)
        self._kinds = [(spec.dtype, 0 in spec.shape) for spec in outputs.values()]
        self._prepares, self._has_scratch = _asks(type(implementation))
        known = runs.of(plan) if implementation.any_size else None
        self._serves = None if known is None else known.serves
        self._loads = not implementation.any_size and binds_loaded(type(implementation))
        self.returns_outputs = implementation.returns_outputs

    def at(self, problem: Problem, arguments: Arguments) -> Resized | None:
        """The plan for another size; None if that would need to compile, load or prepare something."""
        like = self._plan
        if self._prepares and not like.prepared.serve(problem, arguments, like.signature.arguments):
            return None
        outputs, scratch = self._output_sizes(arguments), like.signature.scratch
        sizes = self._sizes(outputs)
        if self._has_scratch:
            scratch = scratch_of(like.candidate, problem, self._device)
            more = resized_made(like.signature.scratch, scratch)
            sizes = None if sizes is None or more is None else [*sizes, *more]
        if self._serves is not None and self._serves(problem, arguments):
            run: Run | None = like.run
        else:
            # the text of the plan's run does not fit outputs or scratch of other kinds
            run = self._run(problem, self._signature(arguments, outputs, scratch), None if sizes is None else like.run)
        if run is None:
            return None
        if self.returns_outputs:
            call = like.call if run is like.run and not scratch else None
        else:
            call = None if sizes is None else resized_call(like.call, like.run, run, sizes)
        make_plan = partial(self._made, problem, arguments, outputs, scratch, run, call)
        return (make_plan().call if call is None else call), make_plan

    def _sizes(self, outputs: Sequence[OutputSize]) -> list[Any] | None:
        """The sizes as arguments of ``resized_call``; None if a dtype differs, or if only one of two is empty."""
        sizes: list[Any] = []
        for (shape, dtype, strides), (was, empty) in zip(outputs, self._kinds, strict=True):
            if dtype is not was or (0 in shape) is not empty:
                return None
            sizes += shape, strides
        return sizes

    def _run(self, problem: Problem, signature: Signature, like: Run | None) -> Run | None:
        plan, device = self._plan, self._device
        implementation, config = plan.candidate.implementation, plan.candidate.config
        if self._loads:
            return implementation.bind_loaded(problem, config, device, signature, like)
        if not implementation.any_size:
            return None
        return self._runs.get(Draft(plan.op, plan.candidate, problem, device, signature, plan.prepared))

    def _signature(
        self, arguments: Arguments, outputs: Sequence[OutputSize], scratch: Mapping[str, TensorSpec]
    ) -> Signature:
        return LateSignature(arguments, partial(self._specs, outputs), scratch, self._plan.signature.prepared)

    def _specs(self, outputs: Sequence[OutputSize]) -> dict[str, TensorSpec]:
        names, device = self._plan.signature.outputs, self._device.torch
        return {name: quick_spec(*size, device) for name, size in zip(names, outputs, strict=True)}

    def _made(
        self,
        problem: Problem,
        arguments: Arguments,
        outputs: Sequence[OutputSize],
        scratch: Mapping[str, TensorSpec],
        run: Run,
        call: Callable[..., Any] | None,
    ) -> Plan:
        like, signature = self._plan, self._signature(arguments, outputs, scratch)
        plan = Plan(like.op, like.candidate, problem, signature, (), run, like.prepared)
        if call is not None:
            plan.__dict__["call"] = call
        return plan


@lru_cache(maxsize=1024)
def _asks(kind: type[Implementation]) -> tuple[bool, bool]:
    """(True if implementations of the class may prepare weights, True if they may have scratch)."""
    return kind.prepared is not Implementation.prepared, kind.scratch is not Implementation.scratch
