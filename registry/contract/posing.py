"""The problem that a call poses: its dimensions, checked, with the traits of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..arguments.traits import FamilyTraits
from ..author_code import where_raised
from ..errors import RegistryError
from ..problem import Arguments, Problem, TensorSpec, Traits, Value, check_choice
from .definition_checks import definition_fault

if TYPE_CHECKING:
    from .op import Op


def posed(op: Op, arguments: Arguments, like: Problem | None) -> Problem:
    """The problem that a call's arguments pose, its dimensions checked: see ``Op.pose``."""
    given: Any = op.problem(arguments)
    if isinstance(given, Problem):
        given = given.dims
    _check_dims(op, given)
    dims = dict(given)
    for name, texts in op.distributions.items():
        dims[name] = texts[0] if like is None else like.dims[name]
    _check_choices(op, dims)
    return Problem(op.name, dims, _traits(op, arguments, told_traits(op, arguments)))


def family_poser(op: Op, traits: type[FamilyTraits], told: Mapping[str, Any] | None) -> Callable[[Arguments], Problem]:
    """``posed`` for calls that differ from a checked one in their numbers alone: see ``Op.posing_in_family``."""
    name, problem, view, choices = op.name, op.problem, op.view, op.choices
    usual = {distribution: texts[0] for distribution, texts in op.distributions.items()}
    made = Problem.of_call if "misaligned" not in op.static | op.dynamic else Problem

    def pose(arguments: Arguments) -> Problem:
        given = problem(arguments)
        dims = {**(given if type(given) is dict else given.dims if isinstance(given, Problem) else given)}
        if usual:
            dims.update(usual)
        if choices:
            _check_choices(op, dims)
        if view is None or view(arguments) is arguments:
            return made(name, dims, traits(arguments, told))
        return made(name, dims, _traits(op, arguments, told))

    return pose


def told_traits(op: Op, arguments: Arguments) -> Mapping[str, Any] | None:
    """Traits of a call that the op finds: see ``Op.told``."""
    mixed = {"mixed": True} if op.alike and _is_mixed(op, arguments) else None
    return {**(mixed or {}), "added": op.added} if op.added else mixed


def _traits(op: Op, arguments: Arguments, told: Mapping[str, Any] | None) -> Traits:
    return Traits(arguments if op.view is None else partial(_viewed, op, arguments), told)


def _viewed(op: Op, arguments: Arguments) -> Arguments:
    assert op.view is not None
    try:
        found: Any = op.view(arguments)
    except RegistryError:
        raise
    except Exception as fault:
        told = f"view() raised {type(fault).__name__}: {fault}"
        hint = "it gets the arguments of a call, and returns registry.Arguments"
        raise definition_fault(op, f"{told}{where_raised(fault, op.view)}", hint) from fault
    if not isinstance(found, Arguments):
        hint = "expected registry.Arguments: those that it was given, or e.g. arguments.mapped(...)"
        raise definition_fault(op, f"view() returned {found!r:.80}", hint, op.view)
    return found


def _is_mixed(op: Op, arguments: Arguments) -> bool:
    pairs = ((arguments[name], arguments[other]) for name, other in op.alike.items())
    return any(
        one.dtype != other.dtype
        for one, other in pairs
        if isinstance(one, TensorSpec) and isinstance(other, TensorSpec)
    )


def _check_choices(op: Op, dims: Mapping[str, Value]) -> None:
    for name, values in op.choices.items():
        check_choice(op.name, name, dims.get(name), values)


def _check_dims(op: Op, dims: Any) -> None:
    """Raise InvalidDefinitionError unless the result of ``problem`` has exactly the op's dimensions."""
    if not isinstance(dims, Mapping):
        raise definition_fault(
            op, f"problem() returned {dims!r:.80}", "expected a value for each dimension", op.problem
        )
    if {*op.static, *op.dynamic} != {*dims, *op.distributions}:
        wanted = ", ".join(sorted((op.static | op.dynamic) - op.distributions.keys()))
        told, hint = f"problem() gives {', '.join(map(str, dims))}", f"its dimensions are {wanted}"
        raise definition_fault(op, told, hint, op.problem)
    for name, value in dims.items():
        if not isinstance(value, int | float | str):
            told = f"problem() gives {name} as {value!r:.80}, a {type(value).__name__}"
            raise definition_fault(op, told, "expected an int, float, str or bool, such as a dtype's name", op.problem)
    _check_forms(op, dims)


def _check_forms(op: Op, dims: Mapping[str, Value]) -> None:
    """Raise InvalidDefinitionError for a dtype, or a dynamic dimension, that no shapes file could name."""
    name = dims.get("dtype", "float32")
    if not isinstance(getattr(torch, str(name), None), torch.dtype):
        hint = "expected the name without its module: str(x.dtype).removeprefix('torch.')"
        raise definition_fault(op, f"problem() gives dtype as {name!r}", hint, op.problem)
    for size in op.dynamic:
        if not isinstance(dims[size], int) or isinstance(dims[size], bool):
            told = f"problem() gives {size} as {dims[size]!r:.80}, a {type(dims[size]).__name__}"
            raise definition_fault(op, told, "expected an int, as of every dynamic dimension", op.problem)
