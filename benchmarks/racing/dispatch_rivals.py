"""Other ways to call the kernel that ``registry.call`` runs, to compare its host time with theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch

from registry import Device
from registry.contract import Op
from registry.dispatch.plans.plan import Plan
from registry.implementation import Launch

from . import peers

_NUMBERS = count()

BY_HAND = "allocation + kernel[grid](...) of the same kernel"

Way = tuple[str, Callable[[], Any] | str]
"""A name, and a call or why there is none."""


def ways(op: Op, plan: Plan, values: tuple[Any, ...], run: Callable[..., Any]) -> Iterator[Way]:
    """Every rival of one call; ``run`` is the plan's call."""
    yield BY_HAND, _by_hand(plan, values)
    yield "torch.library.custom_op around the plan", _custom_op(op, values, run)
    yield "CUDA graph replay", _replay(values, run)
    for name, call in peers.calls(plan.problem, values):
        if name in {"Liger", "FlagGems", "GemLite"}:
            yield name, call if isinstance(call, str) else _tried(call, values)


def _tried(call: Callable[..., Any], values: tuple[Any, ...]) -> Callable[[], Any] | str:
    try:
        call(*values)
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}".splitlines()[0][:160]
    return lambda: call(*values)


def _by_hand(plan: Plan, values: tuple[Any, ...]) -> Callable[[], Any] | str:
    """A Triton launch as written by hand: ``empty`` for each output, then the JIT function, with literal arguments."""
    implementation = plan.candidate.implementation
    ask = getattr(implementation, "launches", None)
    if ask is None or not values[0].is_cuda:
        return f"{implementation.name} is no Triton kernel on a GPU"
    launches = ask(plan.problem, plan.candidate.config, Device.of(values[0].device))
    if len(launches) != 1 or plan.prepared or plan.signature.scratch:
        return f"{implementation.name} launches more than one kernel, or has prepared arguments or scratch"
    return _launcher(plan, launches[0], values)


def _launcher(plan: Plan, launch: Launch, values: tuple[Any, ...]) -> Callable[[], Any]:
    ((name, spec),) = plan.signature.outputs.items()
    known = dict(zip(plan.op.parsed.names, values, strict=True))
    kernel, grid, options = launch.kernel, tuple(launch.grid), {**launch.constants, **launch.options}
    shape, dtype, device = spec.shape, spec.dtype, spec.device
    # the output's place among the arguments; all others are fixed
    place = launch.args.index(name)
    before = [known.get(arg, arg) if isinstance(arg, str) else arg for arg in launch.args[:place]]
    after = [known.get(arg, arg) if isinstance(arg, str) else arg for arg in launch.args[place + 1 :]]

    def by_hand() -> torch.Tensor:
        y = torch.empty(shape, dtype=dtype, device=device)
        kernel[grid](*before, y, *after, **options)
        return y

    by_hand()
    return by_hand


def _custom_op(op: Op, values: tuple[Any, ...], run: Callable[..., Any]) -> Callable[[], Any]:
    """The plan's call as a torch custom op, which torch recommends for a user's own kernel."""
    schema = op.schema.partition("(")[2].rpartition(" ")[0]

    def body(*given: Any) -> Any:
        # torch leaves out arguments that equal their defaults
        return run(*given, *values[len(given) :])

    name = f"kernel_registry_benchmark::{op.hook}_{next(_NUMBERS)}"
    made = torch.library.custom_op(name, body, mutates_args=(), schema=f"({schema}")
    made(*values)
    return lambda: made(*values)


def _replay(values: tuple[Any, ...], run: Callable[..., Any]) -> Callable[[], Any] | str:
    if not values[0].is_cuda:
        return "needs a GPU"
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run(*values)
    except RuntimeError as fault:
        return f"{type(fault).__name__}: {fault}".splitlines()[0][:160]
    return graph.replay
