"""Plans for other sizes of the calls of one family, made of a bound plan without compiling, loading or preparing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from ...arguments.specs import quick_spec, strides_before
from ...artifact import LateSignature, Signature
from ...contract import Rule
from ...device import Device
from ...generated_code import function
from ...implementation import Implementation, Run, binds_loaded, reads_form_alone
from ...problem import Arguments, Problem, TensorSpec, getter
from .any_size_runs import AnySizeRuns
from .plan import Draft, Plan, scratch_of
from .written_plan import resized_made, resizing_call

Resized = tuple[Callable[..., Any], Callable[..., Plan], Any, Any]
"""A plan for another size: its function, and ``make_plan`` with its last parameters.

``make_plan(problem, arguments, *resized)`` makes the plan itself, which few calls need.
"""


class Resizing:
    """Makes plans of one plan's candidate for further sizes of arguments of the same kinds.

    All that does not depend on a size is found out here, once. ``row_major``: all tensors of these calls are.
    """

    def __init__(self, plan: Plan, device: Device, runs: AnySizeRuns, *, row_major: bool = False) -> None:
        self._plan = plan
        self._device = device
        self._torch = device.torch
        self._runs = runs
        implementation, outputs = plan.candidate.implementation, plan.signature.outputs
        self._implementation = implementation
        self._config = plan.candidate.config
        self._scratch = plan.signature.scratch
        self._prepared = plan.signature.prepared
        rule = plan.op.size_rule(row_major=row_major)
        # shape and strides of each output, as arguments of ``resizing_call``; None if the plan's text does not fit them
        names = plan.op.parsed.names
        self._sizes = self._sizes_by_fake if rule is None else _sizes_by(rule, names, outputs.values())
        # within a family equal values are of one type
        self._faked = getter([name for name in names if name in plan.op.fake_reads])
        self._latest_fake: tuple[tuple[Any, ...], list[Any] | None] | None = None
        """The values that the op's fake read last, and the sizes that it made of them."""
        self._prepares, self._has_scratch = _asks(type(implementation))
        known = runs.of(plan) if implementation.any_size else None
        self._serves = None if known is None else known.serves
        self._loads = not implementation.any_size and binds_loaded(type(implementation))
        self._by_form = reads_form_alone(type(implementation))
        self._make_plan = self._made  # kept, since each reading of a method makes an object
        self.returns_outputs = implementation.returns_outputs

    def at(self, problem: Problem, arguments: Arguments) -> Resized | None:
        """The plan for another size; None if that would need to compile, load or prepare something."""
        like = self._plan
        if self._prepares and not like.prepared.serve(problem, arguments, like.signature.arguments):
            return None
        scratch = self._scratch
        sizes = made = self._sizes(arguments)
        if self._has_scratch:
            scratch = scratch_of(like.candidate, problem, self._device)
            more = resized_made(self._scratch, scratch)
            sizes = None if made is None or more is None else [*made, *more]
        if self._loads:
            # the text of the plan's run does not fit outputs or scratch of other kinds
            former = None if sizes is None else like.run
            signature = like.signature
            if former is None or not self._by_form:
                signature = self._signature(arguments, made, scratch)
            run = self._implementation.bind_loaded(problem, self._config, self._device, signature, former)
        elif self._serves is not None and self._serves(problem, arguments):
            run = like.run
        else:
            run = self._any_size_run(problem, arguments, made, scratch)
        if run is None:
            return None
        if self.returns_outputs:
            call = like.call if run is like.run and not scratch else None
        else:
            call = None if sizes is None else self._resized_call(run, sizes)
        if call is None:
            call = self._made(problem, arguments, None, None, scratch, run).call
        return call, self._make_plan, scratch, run

    @cached_property
    def _resized_call(self) -> Callable[[Run, Sequence[Any]], Callable[..., Any] | None]:
        return resizing_call(self._plan.call, self._plan.run)

    def _sizes_by_fake(self, arguments: Arguments) -> list[Any] | None:
        """``_sizes`` without a rule for the outputs."""
        op = self._plan.op
        given = self._faked(arguments.unrecorded)
        latest = self._latest_fake
        if latest is None or latest[0] != given:
            # a fake on meta tensors takes as long as all else of a new size, and an attribute alone may be a new one
            made = resized_made(self._plan.signature.outputs, op.new_output_specs(arguments, self._torch))
            latest = self._latest_fake = given, made
        return latest[1]

    def _any_size_run(
        self, problem: Problem, arguments: Arguments, sizes: list[Any] | None, scratch: Mapping[str, TensorSpec]
    ) -> Run | None:
        """The run that was bound for other static dimensions or attributes; None if there is none."""
        plan = self._plan
        if not self._implementation.any_size:
            return None
        signature = self._signature(arguments, sizes, scratch)
        return self._runs.get(Draft(plan.op, plan.candidate, problem, self._device, signature, plan.prepared))

    def _signature(self, arguments: Arguments, sizes: list[Any] | None, scratch: Mapping[str, TensorSpec]) -> Signature:
        return LateSignature(arguments, self._specs, sizes, scratch, self._prepared)

    def _specs(self, arguments: Arguments, sizes: list[Any] | None) -> dict[str, TensorSpec]:
        """Specs of the outputs, whose ``sizes`` are those of ``_sizes``."""
        if sizes is None:
            return self._plan.op.new_output_specs(arguments, self._torch)
        outputs = self._plan.signature.outputs.items()
        made = zip(outputs, sizes[::2], sizes[1::2], strict=True)
        return {name: quick_spec(shape, spec.dtype, strides, self._torch) for (name, spec), shape, strides in made}

    def _made(
        self,
        problem: Problem,
        arguments: Arguments,
        call: Callable[..., Any] | None,
        _make_plan: object,
        scratch: Mapping[str, TensorSpec],
        run: Run,
    ) -> Plan:
        like, signature = self._plan, self._signature(arguments, self._sizes(arguments), scratch)
        plan = Plan(like.op, like.candidate, problem, signature, (), run, like.prepared)
        if call is not None:
            plan.__dict__["call"] = call
        return plan


def _sizes_by(
    rule: Rule, parameters: Sequence[str], outputs: Iterable[TensorSpec]
) -> Callable[[Arguments], list[Any] | None]:
    """``sizes(arguments)``: shape and strides of each output by a rule; generated, in half the time of a loop.

    It returns None if a dtype differs from that in ``outputs``, or if only one of two tensors is empty.
    """
    names: dict[str, Any] = {"rule": rule, "before": strides_before, "type": type, "tuple": tuple}
    lines, made, tests, sizes = list[str](), "", list[str](), ""
    for place, spec in enumerate(outputs):
        names[f"dtype{place}"] = spec.dtype
        made += f"(given{place}, kind{place}), "
        lines.append(f"shape{place} = given{place} if type(given{place}) is tuple else tuple(given{place})")
        tests.append(f"kind{place} is not dtype{place} or (0 in shape{place}) is not {0 in spec.shape}")
        sizes += f"shape{place}, before(shape{place}[1:]) if shape{place} else (), "
    if made:
        given = ", ".join(f"given[{name!r}]" for name in parameters)
        lines = [
            "given = arguments.unrecorded",
            f"{made} = rule({given})",
            *lines,
            f"if {' or '.join(tests)}: return None",
        ]
    return function("sizes", "arguments", [*lines, f"return [{sizes}]"], names)


@lru_cache(maxsize=1024)
def _asks(kind: type[Implementation]) -> tuple[bool, bool]:
    """(True if implementations of the class may prepare weights, True if they may have scratch)."""
    return kind.prepared is not Implementation.prepared, kind.scratch is not Implementation.scratch
