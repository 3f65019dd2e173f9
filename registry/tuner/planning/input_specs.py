"""Specs of an op's inputs without the inputs: a problem of gigabytes is planned where there is no memory for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...contract import Op
from ...problem import Arguments, Problem, TensorSpec

_CPU = torch.device("cpu")
_META = torch.device("meta")
_RANDOM = (torch.randn, torch.rand)


def arguments_of(op: Op, problem: Problem) -> Arguments:
    """Specs of what ``op.inputs`` would make on the CPU, without making it."""
    try:
        with _META, _OnMeta():
            arguments = op.arguments(op.inputs(problem, op.kinds[0], torch.Generator()))
    except (RuntimeError, TypeError, ValueError):
        # some input depends on another one's values, or is moved to the generator's device
        return _of_fakes(op, problem)
    specs = {
        name: replace(value, device=_CPU) if isinstance(value, TensorSpec) else value
        for name, value in arguments.values.items()
    }
    return Arguments(op.name, specs)


def _of_fakes(op: Op, problem: Problem) -> Arguments:
    """The same by torch's fake tensors, which stand for more and whose import takes two seconds."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return op.arguments(op.inputs(problem, op.kinds[0], torch.Generator()))


class _OnMeta(TorchFunctionMode):
    """Whatever asks for a device gets meta tensors; a generator has nothing to draw for them."""

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
        # as many meta tensors of random numbers would have torch import its symbolic shapes
        return torch.empty(*args, **given) if func in _RANDOM else func(*args, **given)
