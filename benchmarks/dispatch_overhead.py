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
from collections.abc import Callable, Iterable
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
from registry.implementation import Run
from registry.space import Config

BATCHES = 15
CALLS = 300


@dataclass(frozen=True)
class Line:
    """One measured thing. ``us`` is microseconds of host time a call."""

    op: str
    what: str
    us: float


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


def cases(device: str) -> dict[str, tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]]:
    """Op -> torch's own way, and the registry's arguments."""
    dtype = torch.bfloat16
    x = torch.randn(16, 1024, device=device, dtype=dtype)
    weight = torch.randn(1024, device=device, dtype=dtype)
    dense = torch.randn(512, 1024, device=device, dtype=dtype)
    packed = registry.quantize(dense, bits=4, group_size=128)
    return {
        "softmax": (lambda: torch.softmax(x, -1), (x,), {}),
        "rms_norm": (lambda: torch.nn.functional.rms_norm(x, (1024,), weight, 1e-6), (x, weight), {"eps": 1e-6}),
        "gemm_int4": (lambda: x @ dense.T, (x, packed), {}),
    }


def through(
    dispatcher: Dispatcher, op: str, args: tuple[Any, ...], attributes: dict[str, Any], cuda: bool
) -> Iterable[Line]:
    """The plan of a call, the call bound to its op, and the call by name."""
    bound = dispatcher.op(op)
    bound(*args, **attributes)
    told = dispatcher.explain(op, *args, **attributes)
    table = dispatcher.bound(op).table
    contract = dispatcher.catalog.op(op)
    flat, named = contract.flatten(*args, **attributes) if contract.flatten else (args, attributes)
    values = contract.parsed.bind(flat, named)
    form = (len(flat), *named) if named else len(flat)
    run = table.entries[form][flat[0].shape][0].resolved.run
    name = told.implementation
    yield Line(op, f"{name}: plan", host_us(lambda: run(*values), cuda))
    yield Line(op, f"{name}: registry.op(...)", host_us(lambda: bound(*args, **attributes), cuda))
    yield Line(op, f"{name}: registry.call(...)", host_us(lambda: dispatcher.call(op, *args, **attributes), cuda))


def parts(op: str, args: tuple[Any, ...], dispatcher: Dispatcher) -> Iterable[Line]:
    """What a hit on the hot path consists of."""
    contract = dispatcher.catalog.op(op)
    table = dispatcher.bound(op).table
    if contract.flatten:
        yield Line(op, "part: flatten", host_us(lambda: contract.flatten(*args), False))  # type: ignore[misc]
        args = contract.flatten(*args)[0]
    entries = next(shapes for shapes in table.entries.values() if args[0].shape in shapes)
    matches = entries[args[0].shape][0].matches
    given = args if op != "rms_norm" else (*args, 1e-6)
    yield Line(op, "part: table lookup by shape", host_us(lambda: entries[args[0].shape], False))
    yield Line(op, "part: guard", host_us(lambda: matches(*given), False))
    yield Line(op, "part: modes, forward AD, using", host_us(lambda: _state(dispatcher), False))


def _state(dispatcher: Dispatcher) -> bool:
    return not torch_private.dispatch_modes() and forward_ad._current_level < 0 and not dispatcher.forcing.active


def plain_triton(x: torch.Tensor) -> Callable[[], Any]:
    """``kernel[grid](...)`` as most people launch: a copy of a row by one program."""
    from benchmarks.dispatch_overhead_kernel import copy_rows

    y = torch.empty_like(x)
    rows, cols = x.shape

    def launch() -> None:
        copy_rows[(rows,)](y, x, cols, BLOCK=1024)

    launch()
    return launch


def measure(device: str) -> list[Line]:
    """Every line for one device."""
    cuda = device == "cuda"
    null = Dispatcher(Catalog(entry_points=()))
    for contract in BOX:
        null.register(Null(contract.name))
    real = Dispatcher()
    lines = [Line("", "an empty Python function", host_us(lambda: None, False))]
    for op, (torchs, args, attributes) in cases(device).items():
        lines.append(Line(op, "torch's own", host_us(torchs, cuda)))
        if op == "softmax" and cuda:
            lines.append(Line(op, "Triton kernel[grid](...), nothing allocated", host_us(plain_triton(args[0]), cuda)))
        lines += through(real, op, args, attributes, cuda)
        lines += through(null, op, args, attributes, cuda)
        lines += parts(op, args, null)
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the lines and the environment there")
    options = parser.parse_args()
    device = registry.Device.of(options.device)
    environment = {"device": str(device), **device.software(), "host": platform.processor() or platform.machine()}
    environment["guard"] = "torch's TensorGuards" if torch_private.NATIVE_GUARD else "public"
    lines = measure(options.device)
    print("\n".join(f"{name:8} {value}" for name, value in environment.items()))
    for line in lines:
        print(f"{line.op:10} {line.what:50} {line.us:8.2f} µs")
    if options.json:
        record = {"environment": environment, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
