"""Host time of a call: torch's own op, the plan, ``registry.call`` above it, and the parts of that difference.

    python -m benchmarks.dispatch_overhead [--device cuda] [--json FILE]

Times are host microseconds a call: the least of several batches, since only disturbances make a batch longer. Tensors
are small, so that a GPU is never the one to wait for. "null" is an implementation that does nothing: what is left
above its plan is dispatch itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

import registry
from registry.artifact import Built
from registry.contracts import BOX
from registry.discovery import Catalog
from registry.dispatch import torch_private
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plan import Plan
from registry.implementation import Run
from registry.space import Config

from .dispatch_rivals import ways

BATCHES = 15
CALLS = 300


@dataclass(frozen=True)
class Line:
    """Microseconds of host time a call, or a ratio without unit; None where ``what`` says why there is none."""

    op: str
    what: str
    value: float | None
    unit: str = "µs"


class Null(registry.Implementation):
    """Computes nothing: its plan is an allocation."""

    device_types = frozenset({"cpu", "cuda"})

    def __init__(self, op: str) -> None:
        self.op = op
        self.name = "null.nothing"

    def preference(self, _problem: registry.Problem, _device: registry.Device) -> float:
        return 1e9

    def bind(self, _problem: registry.Problem, _config: Config, _device: registry.Device, _built: Built) -> Run:
        return lambda *_: None


def host_us(call: Callable[[], Any], cuda: bool) -> float:
    """Microseconds of host time for one call."""
    best = float("inf")
    for _ in range(BATCHES):
        if cuda:
            torch.cuda.synchronize()
        best = min(best, timeit.timeit(call, number=CALLS) / CALLS)
    return best * 1e6


@dataclass(frozen=True)
class Case:
    """One call: torch's own way, and the registry's with positional and named arguments, as a user writes it."""

    op: str
    torchs: Callable[[], Any]
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    by_name: Callable[[Callable[..., Any]], Callable[[], Any]]
    bound: Callable[[Callable[..., Any]], Callable[[], Any]]


def cases(device: str) -> list[Case]:
    """One token of a model, where host time matters most."""
    cols = 4096
    x = torch.randn(1, cols, device=device, dtype=torch.bfloat16)
    weight = torch.randn(cols, device=device, dtype=torch.bfloat16)
    dense = torch.randn(cols, cols, device=device, dtype=torch.bfloat16)
    w = registry.quantize(dense, bits=4, group_size=128)
    # literal calls: to unpack a tuple and a dict would be timed too
    return [
        Case(
            "softmax",
            lambda: torch.softmax(x, -1),
            (x,),
            {},
            lambda call: lambda: call("softmax", x),
            lambda call: lambda: call(x),
        ),
        Case(
            "rms_norm",
            lambda: torch.nn.functional.rms_norm(x, (cols,), weight, 1e-6),
            (x, weight),
            {"eps": 1e-6},
            lambda call: lambda: call("rms_norm", x, weight, eps=1e-6),
            lambda call: lambda: call(x, weight, eps=1e-6),
        ),
        Case(
            "gemm_int4",
            lambda: x @ dense.T,
            (x, w),
            {},
            lambda call: lambda: call("gemm_int4", x, w),
            lambda call: lambda: call(x, w),
        ),
    ]


def through(dispatcher: Dispatcher, case: Case, cuda: bool, rivals: bool) -> Iterator[Line]:
    """The plan of a call, what stands above it, and the same kernel called in other ways."""
    bound = dispatcher.bound(case.op)
    for _ in range(3):
        dispatcher.call(case.op, *case.args, **case.attributes)
    told = dispatcher.explain(case.op, *case.args, **case.attributes)
    values = bound.op.bind(case.args, case.attributes)
    tensors = tuple(values[place] for place in bound.entries.tensors)
    plain = tuple(values[place] for place in bound.entries.plain)
    entry = bound.table.find(values[0].shape, tensors, plain, torch.is_grad_enabled())
    assert entry is not None, "the calls above are hits"
    run = entry.run
    us = {
        "plan": host_us(lambda: run(*values), cuda),
        "registry.op(...)": host_us(case.bound(bound.call), cuda),
        "registry.call(...)": host_us(case.by_name(dispatcher.call), cuda),
    }
    yield from (Line(case.op, f"{told.implementation}: {what}", time) for what, time in us.items())
    call = us["registry.call(...)"]
    yield Line(case.op, f"{told.implementation}: call above its plan", call - us["plan"])
    if rivals:
        yield from _beside(case, entry.resolved.plan, values, run, call, cuda)


def _beside(
    case: Case, plan: Plan | None, values: tuple[Any, ...], run: Callable[..., Any], call: float, cuda: bool
) -> Iterator[Line]:
    torchs = host_us(case.torchs, cuda)
    yield Line(case.op, "torch's own", torchs)
    yield Line(case.op, "ratio: call / torch's own", call / torchs, "")
    operator = getattr(torch.ops.kernel_registry, case.op)
    operator(*values)
    yield Line(case.op, f"torch.ops.kernel_registry.{case.op}", host_us(lambda: operator(*values), cuda))
    if plan is None:
        return
    for name, way in ways(registry.ops()[case.op], plan, values, run):
        if isinstance(way, str):
            yield Line(case.op, f"{name}: {way}", None)
            continue
        us = host_us(way, cuda)
        yield Line(case.op, name, us)
        if name.startswith("allocation"):
            yield Line(case.op, "ratio: call / (allocation + kernel[grid])", call / us, "")


def parts(case: Case, dispatcher: Dispatcher) -> Iterator[Line]:
    """What a hit on the hot path consists of, each measured alone."""
    bound = dispatcher.bound(case.op)
    values = bound.op.bind(case.args, case.attributes)
    tensors = [values[place] for place in bound.entries.tensors]
    now, first = bound.table.now, values[0]
    matches = next(iter(now.shapes.get(first.shape, now.anywhere))).check
    yield Line(case.op, "part: key, if the call is not like the latest", host_us(lambda: first.shape, False))
    yield Line(case.op, "part: key and lookup, likewise", host_us(lambda: now.shapes.get(first.shape), False))
    yield Line(case.op, "part: guard of the tensors", host_us(lambda: matches(*tensors), False))
    yield Line(case.op, "part: modes, forward AD, using, recording", host_us(lambda: _state(dispatcher), False))
    yield Line(case.op, "part: no nested tensor", host_us(lambda: [one.is_nested for one in tensors], False))


def _state(dispatcher: Dispatcher) -> bool:
    quiet = not torch_private.dispatch_modes() and forward_ad._current_level < 0
    return quiet and not dispatcher.forcing.active and not dispatcher.recorder.active


def alternating(dispatcher: Dispatcher, device: str, cuda: bool) -> Line:
    """Two shapes in turn, so that no call is like the one before."""
    x, other = (torch.randn(1, cols, device=device, dtype=torch.bfloat16) for cols in (4096, 2048))
    call = dispatcher.op("softmax")
    for _ in range(3):
        call(x), call(other)
    return Line(
        "softmax", "null: registry.op(...), two shapes in turn", host_us(lambda: (call(x), call(other)), cuda) / 2
    )


def triton_only(op: str) -> Dispatcher | None:
    """A dispatcher with one Triton kernel for the op, so that calling it by hand can be compared."""
    found = {one.name: one for one in registry.implementations(op)}
    wanted = next((found[name] for name in ("triton.row", "triton.gemm") if name in found), None)
    if wanted is None:
        return None
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.register(wanted)
    return dispatcher


def measure(device: str) -> Iterator[Line]:
    """Every line for one device."""
    cuda = device == "cuda"
    null = Dispatcher(Catalog(entry_points=()))
    for contract in BOX:
        null.register(Null(contract.name))
    yield Line("", "an empty Python function", host_us(lambda: None, False))
    for case in cases(device):
        yield from through(registry._dispatcher, case, cuda, rivals=True)
        if cuda and (only := triton_only(case.op)) is not None:
            yield from through(only, case, cuda, rivals=True)
        yield from through(null, case, cuda, rivals=False)
        yield from parts(case, null)
    yield alternating(null, device, cuda)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the lines and the environment there")
    options = parser.parse_args()
    device = registry.Device.of(options.device)
    environment = {"device": str(device), **device.software(), "host": platform.processor() or platform.machine()}
    environment["guard"] = "torch's TensorGuards" if torch_private.NATIVE_GUARD else "public"
    print("\n".join(f"{name:8} {value}" for name, value in environment.items()))
    lines = []
    for line in measure(options.device):
        lines.append(line)
        shown = "       -" if line.value is None else f"{line.value:8.2f} {line.unit}"
        print(f"{line.op:10} {line.what:60} {shown}", flush=True)
    if options.json:
        record = {"environment": environment, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
