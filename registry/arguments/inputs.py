"""Specs of an op's inputs without making the inputs: a problem of gigabytes can be planned without memory for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..errors import InvalidArgumentError, RegistryError
from ..problem import Arguments, Problem
from .on_meta import META, OnMeta

if TYPE_CHECKING:
    from ..contract import Op

_CPU = torch.device("cpu")


_SMALL_BYTES = 64 << 20
"""Inputs that depend on data are made on the CPU if the problem's floor is at most this many bytes."""


def posed_by_inputs(op: Op, problem: Problem) -> Problem:
    """``problem`` as the inputs that ``op.inputs`` makes for it pose it: with traits, dimensions in the op's order.

    Raises InvalidArgumentError if these inputs pose a problem of other dimensions, or none. If no inputs can be made,
    ``problem`` is returned unchanged; the fault is raised later, where the inputs are needed.
    """
    try:
        arguments = arguments_of(op, problem)
    except Exception:  # an author's inputs may raise anything
        return problem
    posed = op.pose(arguments, problem)
    if posed != problem:
        raise InvalidArgumentError(
            f"{problem}: its inputs pose {posed}",
            hint="inputs() and problem() of the op must agree: check_op tells where",
        )
    return Problem(op.name, posed.dims, posed.traits)


def arguments_of(op: Op, problem: Problem) -> Arguments:
    """Specs of ``op.inputs`` on the CPU, without making the inputs if that is possible."""
    kind = op.kinds[0]
    try:
        return _on_meta(op, problem, kind)
    except (RuntimeError, TypeError, ValueError) as fault:
        if isinstance(fault, RegistryError):
            raise
        # some input depends on another one's values, or is moved to the generator's device
    try:
        return _of_fakes(op, problem)
    except Exception:  # torch has many errors for data that are not there
        if op.floor(problem).bytes > _SMALL_BYTES:
            raise
    return op.arguments(op.draw(problem, kind, torch.Generator().manual_seed(0)))


def arguments_of_other_kinds(op: Op, problem: Problem) -> tuple[Arguments, ...]:
    """Specs of the op's other kinds of inputs that differ from the first kind's, e.g. by an epsilon, each once.

    Kinds whose inputs would have to be made are left out.
    """
    found: list[Arguments] = []
    for kind in op.kinds:
        try:
            arguments = _on_meta(op, problem, kind)
        except Exception:  # an author's code may raise anything for tensors without data
            continue
        if all(arguments.values != other.values for other in found):
            found.append(arguments)
    return tuple(found[1:])


def _on_meta(op: Op, problem: Problem, kind: str) -> Arguments:
    with META, OnMeta():
        made = op.inputs(problem, kind, torch.Generator())
    if isinstance(made, torch.Tensor):
        raise TypeError("inputs() returned one tensor")  # with which no values pair; ``Op.draw`` tells the author
    # outside of the modes, through both of which each attribute of a tensor would pass
    return op.arguments(op.parsed.coerced(made)).mapped(lambda spec: replace(spec, device=_CPU))


def call_bytes(op: Op, problem: Problem) -> int:
    """Bytes of a call's tensors, arguments and outputs; the problem's floor where its inputs cannot be posed.

    The floor alone may be far less: an embedding reads a few rows of a table of gigabytes.
    """
    least = op.floor(problem).bytes
    try:
        arguments = arguments_of(op, problem)
        outputs = op.output_specs(arguments, _CPU)
    except Exception:  # an author's code may raise anything; the fault is told where the inputs are made
        return least
    return max(least, sum(spec.nbytes for spec in (*arguments.tensors.values(), *outputs.values())))


def _of_fakes(op: Op, problem: Problem) -> Arguments:
    """Specs by torch's fake tensors, which can do more than meta tensors but take two seconds to import."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return op.arguments(op.draw(problem, op.kinds[0], torch.Generator()))
