"""A plan for many row counts: outputs, scratch and launches whose sizes follow from those of the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...artifact import Built, Signature
from ...contract import Op
from ...device import Device
from ...implementation import Implementation, RowsRun, Run
from ...problem import Arguments, Problem, TensorSpec
from ...symbolic import Interval, is_symbolic, settled, text_of, value_at
from .leading import Leading, row_major
from .plan import Plan
from .written_plan import Allocation, Sizes, fixed, written_call


@dataclass(frozen=True)
class Sized:
    """A call with sizes that stand for many: what is asked of these narrows ``interval``."""

    op: Op
    leading: Leading
    interval: Interval
    arguments: Arguments
    problem: Problem
    actual: Arguments

    def at(self, rows: int) -> Problem:
        """The problem of another row count."""
        dims = {name: value_at(value, rows) for name, value in self.problem.dims.items()}
        return Problem(self.problem.op, dims, self.problem.traits)


def sized(op: Op, arguments: Arguments, leading: Leading) -> Sized:
    """The problem of a call with its leading sizes left open."""
    interval = Interval(leading.rows)
    opened = leading.arguments(arguments, leading.symbols(interval))
    with interval.free_text():
        problem = op.pose(opened)
    for name, value in problem.dims.items():
        if name not in op.dynamic:
            settled(value, f"the static dimension {name}")
    for name in ("contiguous", "aligned"):
        settled(problem.traits[name], f"the trait {name}")
    return Sized(op, leading, interval, opened, problem, arguments)


@dataclass(frozen=True)
class _Output:
    """``shape`` behind the leading sizes where it ``varies``; all of the shape where it does not."""

    spec: TensorSpec
    varies: bool


def sized_call(call: Sized, plan: Plan, device: Device) -> Callable[..., Any] | str:
    """``call(*values)`` for every row count of the interval, or why there is none. Narrows the interval."""
    implementation, config = plan.candidate.implementation, plan.candidate.config
    outputs = _outputs(call, plan)
    if isinstance(outputs, str):
        return outputs
    if {**implementation.prepared(call.problem, config)} != {**implementation.prepared(plan.problem, config)}:
        return f"{implementation.name}: what it prepares depends on the row count"
    scratch = {
        name: replace(spec, device=device.torch)
        for name, spec in implementation.scratch(call.problem, config, device).items()
    }
    symbols = call.leading.symbols(call.interval)
    specs = {
        name: row_major(output.spec, (*symbols, *output.spec.shape)) if output.varies else output.spec
        for name, output in outputs.items()
    }
    signature = Signature(call.arguments, specs, scratch, plan.signature.prepared)
    run: Run | RowsRun | None = plan.run
    if not implementation.any_rows:
        variants = implementation.variants(call.problem, config, device, signature)
        if [variant.key for variant in variants] != [artifact.variant.key for artifact in plan.artifacts]:
            return f"{implementation.name}: it would be compiled otherwise"
        bind_rows = implementation.bind_rows if _binds_rows(implementation) else _refuse
        run = bind_rows(call.problem, config, device, Built(signature, plan.artifacts))
    if run is None:
        return f"{implementation.name} is bound to one shape"
    return _written(call, plan, device, run, list(outputs.values()), list(scratch.values()))


def _binds_rows(implementation: Implementation) -> bool:
    """Whether ``bind_rows`` was written for this ``bind``: a class may override the latter alone."""
    classes = type(implementation).__mro__
    bind, bind_rows = (next(each for each in classes if name in vars(each)) for name in ("bind", "bind_rows"))
    return issubclass(bind_rows, bind)


def _refuse(*_given: object) -> None:
    return None


# --- outputs


def _outputs(call: Sized, plan: Plan) -> dict[str, _Output] | str:
    """How the outputs' shapes follow from the leading sizes, told by running the op's fake for some of them.

    Only two rules are known: the leading sizes followed by fixed ones, row-major, or fixed altogether.
    """
    if plan.candidate.implementation.returns_outputs:
        return {}
    found: dict[str, _Output] = {}
    sizes = [call.leading.sizes, *_samples(call.interval, call.leading.count)]
    seen = [(each, call.op.output_specs(call.leading.arguments(call.actual, each), _META)) for each in sizes]
    for name, spec in plan.signature.outputs.items():
        shapes = [(each, specs[name]) for each, specs in seen]
        if all(_same_form(other, spec) for _, other in shapes):
            found[name] = _Output(spec, varies=False)
        elif all(_follows(other, each, spec.shape[call.leading.count :]) for each, other in shapes):
            found[name] = _Output(replace(spec, shape=spec.shape[call.leading.count :], strides=()), varies=True)
        else:
            return f"{call.op.name}: the shape of {name} follows from the row count in a way that is not known here"
    return found


_META = torch.device("meta")


def _same_form(one: TensorSpec, other: TensorSpec) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _follows(spec: TensorSpec, sizes: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    wanted = row_major(spec, (*sizes, *tail))
    return spec.shape == wanted.shape and spec.strides == wanted.strides


def _samples(interval: Interval, count: int) -> Iterator[tuple[int, ...]]:
    """Leading sizes with a product in the interval: its ends, what is beside the call, and some between."""
    lo, hi, rows = interval.lo, interval.hi, interval.rows
    wanted = {lo, lo + 1, rows - 1, rows + 1, 2 * rows, math.isqrt(lo * hi), hi - 1, hi} - {rows}
    for place, number in enumerate(sorted(number for number in wanted if number in interval)):
        # in turn in every dimension
        yield tuple(number if axis == place % count else 1 for axis in range(count))


# --- the function


def _written(
    call: Sized,
    plan: Plan,
    device: Device,
    run: Run | RowsRun,
    outputs: Sequence[_Output],
    scratch: Sequence[TensorSpec],
) -> Callable[..., Any]:
    sizes = [f"s{axis}" for axis in range(call.leading.count)]
    first = call.op.parsed.names.index(call.leading.names[0])
    rank = len(call.actual.tensor(call.leading.names[0]).shape)
    opening = [f"{''.join(f'{size}, ' for size in sizes)}{'_' if rank > len(sizes) else ''} = a{first}.shape"]
    opening.append(f"rows = {' * '.join(sizes)}")
    implementation = plan.candidate.implementation
    return written_call(
        len(call.actual.values),
        device.torch,
        run,
        [_allocation(output, sizes) for output in outputs],
        [Allocation(spec, _texts(spec.shape), _texts(spec.strides)) for spec in scratch],
        plan.prepared.hit(plan.signature.arguments, call.leading.names) if plan.prepared else None,
        returns_outputs=implementation.returns_outputs,
        sizes=Sizes(opening, () if implementation.any_rows else ("rows",)),
    )


def _allocation(output: _Output, sizes: Sequence[str]) -> Allocation:
    if not output.varies:
        return fixed(output.spec)
    shape = [*sizes, *map(str, output.spec.shape)]
    return Allocation(output.spec, shape, _strides(sizes, output.spec.shape))


def _strides(sizes: Sequence[str], tail: Sequence[int]) -> list[str]:
    """Row-major."""
    step, strides = math.prod(tail), []
    for axis in range(len(sizes)):
        strides.append(" * ".join([*sizes[axis + 1 :], str(step)]))
    return [*strides, *(str(math.prod(tail[axis + 1 :])) for axis in range(len(tail)))]


def _texts(values: Sequence[Any]) -> list[str]:
    return [text_of(value) if is_symbolic(value) else str(value) for value in values]
