"""Specs of an op's inputs without making the inputs: a problem of gigabytes can be planned without memory for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import InvalidArgumentError, RegistryError
from ..problem import Arguments, Problem

if TYPE_CHECKING:
    from ..contract import Op

_CPU = torch.device("cpu")
_META = torch.device("meta")
_RANDOM = (torch.randn, torch.rand)


_SMALL_BYTES = 64 << 20
"""Inputs that depend on data are made on the CPU if the problem's floor is at most this many bytes."""


def posed_by_inputs(op: Op, problem: Problem) -> Problem:
    """``problem`` with the traits of the inputs that ``op.inputs`` makes for it.

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
    return Problem(op.name, problem.dims, posed.traits)


def arguments_of(op: Op, problem: Problem) -> Arguments:
    """Specs of ``op.inputs`` on the CPU, without making the inputs if that is possible."""
    kind = op.kinds[0]
    try:
        with _META, _OnMeta():
            arguments = op.arguments(op.draw(problem, kind, torch.Generator()))
        return arguments.mapped(lambda spec: replace(spec, device=_CPU))
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


def _of_fakes(op: Op, problem: Problem) -> Arguments:
    """Specs by torch's fake tensors, which can do more than meta tensors but take two seconds to import."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return op.arguments(op.draw(problem, op.kinds[0], torch.Generator()))


class _OnMeta(TorchFunctionMode):
    """A mode in which all tensors are made on the meta device, and random ones without their generator."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        if given.get("device") is not None:
            given["device"] = _META
        # not torch's random functions, which on meta tensors import torch's symbolic shapes
        return torch.empty(*args, **given) if func in _RANDOM else func(*args, **given)
