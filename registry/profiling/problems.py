"""Calls of given problems under torch's profiler, on inputs that are not in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..device import Device
from ..dispatch.dispatcher import Dispatcher
from ..dispatch.torch_side.profiles import with_dimensions
from ..errors import in_a_line
from ..problem import Problem
from ..tuner.measure.protocol import TimingProtocol
from ..tuner.measure.samplers import copies_of
from .program import new_profiler

_WARM_CALLS = 2
"""The first builds the plan, the second meets it in memory."""


def profiled_problems(
    dispatcher: Dispatcher, problems: Iterable[Problem], device: Device, calls: int, target: Path
) -> list[str]:
    """Call each problem ``calls`` times after a warm-up, and write the trace of these calls to ``target``.

    Returns why problems could not be called, a line each; if none could be, no trace is written. Inputs are drawn as
    the op draws them, in as many copies as evict each other from the cache.
    """
    faults, warm = [], []
    with torch.no_grad():
        for problem in problems:
            try:
                _call(dispatcher, problem, device, _WARM_CALLS)
            except Exception as fault:
                faults.append(f"{problem}: {in_a_line(fault)}")
            else:
                warm.append(problem)
        if warm:
            with with_dimensions(), new_profiler() as profiler:
                for problem in warm:
                    _call(dispatcher, problem, device, calls)
            profiler.export_chrome_trace(str(target))
    return faults


def _call(dispatcher: Dispatcher, problem: Problem, device: Device, calls: int) -> None:
    inputs, call = _inputs(dispatcher, problem, device, calls), dispatcher.bound(problem.op).flat
    for number in range(calls):
        call(*inputs[number % len(inputs)])
    if device.type == "cuda":
        torch.cuda.synchronize(device.torch)


def _inputs(dispatcher: Dispatcher, problem: Problem, device: Device, calls: int) -> list[tuple[Any, ...]]:
    op = dispatcher.bound(problem.op).op
    copies = min(calls, copies_of(op.floor(problem).bytes, TimingProtocol.of(device)))
    generator = torch.Generator(device.torch).manual_seed(0)
    return [op.draw(problem, op.kinds[0], generator) for _ in range(max(1, copies))]
