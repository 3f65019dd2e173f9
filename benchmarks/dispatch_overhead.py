"""Host time of a call: torch's own op, the plan, ``registry.call`` above it, and the parts of that difference.

    python -m benchmarks.dispatch_overhead [--device cuda] [--rounds N] [--calls] [--op OP] [--json FILE]

Times are host microseconds a call. The ways of one call are timed in turn, a short batch of each at a time, and what is
printed is the median of the batches, of their differences and of their ratios: a host whose clock changes changes it
for all. Tensors are small, so that a GPU is never the one to wait for. "null" is an implementation that does nothing:
what is left above its plan is dispatch itself.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

import registry
from registry.artifact import Built
from registry.contracts import BOX
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.plan import Plan
from registry.dispatch.torch_side import torch_private
from registry.implementation import Run
from registry.space import Config

from .arguments import output_file
from .racing import dispatch_sizes
from .racing.device_timing import ratio
from .racing.dispatch_rivals import BY_HAND, ways

ROUNDS = 101
CALLS = 50
OPS = ("softmax", "rms_norm", "gemm_int4")

TORCHS = "torch's own"


@dataclass(frozen=True)
class Line:
    """Median microseconds of host time a call, or a ratio without unit; None where ``what`` says why there is none."""

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


Times = Mapping[str, list[float]]
"""Microseconds a call by way, a value for each round."""


def host_times(ways: Mapping[str, Callable[[], Any]], cuda: bool, rounds: int = ROUNDS) -> Times:
    """Host time of each way, in turn: each round begins with another way."""
    names, times = list(ways), {name: [0.0] * rounds for name in ways}
    timers = {name: timeit.Timer(call) for name, call in ways.items()}
    for timer in timers.values():
        timer.timeit(CALLS)
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            if cuda:
                torch.cuda.synchronize()
            times[name][turn] = timers[name].timeit(CALLS) / CALLS * 1e6
    return times


def above(times: Times, one: str, other: str) -> float:
    """How much longer ``one`` takes, in the median round."""
    return statistics.median(a - b for a, b in zip(times[one], times[other], strict=True))


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
    """Calls for one token of a model, where host time matters most."""
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


def listed(device: str) -> Case:
    """A call with a list of four tensors and a list of ints, as a mixture of experts has them; lists as literals."""
    x, a, b, c, d = (torch.randn(64, device=device) for _ in range(5))
    return Case(
        "bench::moe",
        lambda: x + a + b + c + d,
        (x, [a, b, c, d], [1, 2, 3, 4]),
        {},
        lambda call: lambda: call("bench::moe", x, [a, b, c, d], [1, 2, 3, 4]),
        lambda call: lambda: call(x, [a, b, c, d], [1, 2, 3, 4]),
    )


def through(dispatcher: Dispatcher, case: Case, cuda: bool, rounds: int, *, rivals: bool) -> Iterator[Line]:
    """The plan of a call, the time of ``registry.call`` above it, and the same kernel called in other ways."""
    bound = dispatcher.bound(case.op)
    for _ in range(3):
        dispatcher.call(case.op, *case.args, **case.attributes)
    told = dispatcher.explain(case.op, *case.args, **case.attributes)
    values = bound.op.bind(case.args, case.attributes)
    entry = bound.miss.entries.known(bound.table, values)
    assert entry is not None, "the calls above are hits"
    ways: dict[str, Callable[[], Any]] = {
        "plan": written_out(entry.run, values),
        "registry.op(...)": case.bound(bound.call),
        "registry.call(...)": case.by_name(dispatcher.call),
    }
    absent = _beside(case, entry.resolved.plan, values, entry.run, ways) if rivals else []
    times = host_times(ways, cuda, rounds)
    shown = {way: f"{told.implementation}: {way}" if way in _OURS else way for way in times}
    yield from (Line(case.op, shown[way], statistics.median(each)) for way, each in times.items())
    yield from absent
    for way in ("registry.op(...)", "registry.call(...)"):
        yield Line(case.op, f"{told.implementation}: {way} above its plan", above(times, way, "plan"))
    for rival in (TORCHS, BY_HAND):
        if rival in times:
            yield Line(case.op, f"ratio: registry.call(...) / {rival}", ratio(times, "registry.call(...)", rival), "")


_OURS = ("plan", "registry.op(...)", "registry.call(...)")


def written_out(run: Callable[..., Any], values: tuple[Any, ...]) -> Callable[[], Any]:
    """``run`` of these values without a tuple to unpack, as the calls beside it are written."""
    given = {f"a{place}": value for place, value in enumerate(values)}
    made: Callable[[], Any] = eval(f"lambda: run({', '.join(given)})", {"run": run, **given})
    return made


def _beside(
    case: Case,
    plan: Plan | None,
    values: tuple[Any, ...],
    run: Callable[..., Any],
    into: dict[str, Callable[[], Any]],
) -> list[Line]:
    """Adds the other ways to call the op to ``into``; returns a line for each way that is not available."""
    into[TORCHS] = case.torchs
    operator = getattr(torch.ops.kernel_registry, case.op)
    operator(*values)
    into[f"torch.ops.kernel_registry.{case.op}"] = written_out(operator, values)
    absent = []
    for name, way in ways(registry.ops()[case.op], plan, values, run) if plan is not None else ():
        if isinstance(way, str):
            absent.append(Line(case.op, f"{name}: {way}", None))
        else:
            into[name] = way
    return absent


def parts(case: Case, dispatcher: Dispatcher, rounds: int) -> Iterator[Line]:
    """The parts of a hit on the hot path, each measured alone."""
    bound = dispatcher.bound(case.op)
    values = bound.op.bind(case.args, case.attributes)
    tensors = bound.miss.entries.parts.tensors(values)
    now, first = bound.table.now, values[0]
    matches, *_ = next(iter(now.shapes[first.shape]))
    forcing, recorder = dispatcher.forcing, dispatcher.recorder
    separate: dict[str, Callable[[], Any]] = {
        "key, if the call is not like the latest": lambda: first.shape,
        "key and lookup, likewise": lambda: now.shapes.get(first.shape),
        "guard of the tensors": written_out(matches, tuple(tensors)),
        "modes, forward AD, using, recording": lambda: (
            torch_private.dispatch_modes() or forward_ad._current_level >= 0 or forcing.active or recorder.active
        ),
        "no nested tensor": lambda: first.is_nested,
    }
    times = host_times({"nothing": lambda: None, **separate}, False, rounds)
    yield from (Line(case.op, f"part: {what}", above(times, what, "nothing")) for what in separate)


def alternating(dispatcher: Dispatcher, device: str, cuda: bool, rounds: int) -> Line:
    """Two shapes in turn, so that no call is like the one before."""
    x, other = (torch.randn(1, cols, device=device, dtype=torch.bfloat16) for cols in (4096, 2048))
    call = dispatcher.op("softmax")
    for _ in range(3):
        call(x), call(other)
    what = "null: registry.op(...), two shapes in turn"
    times = host_times({what: lambda: (call(x), call(other))}, cuda, rounds)
    return Line("softmax", what, statistics.median(times[what]) / 2)


def triton_only(op: str) -> Dispatcher | None:
    """A dispatcher with one Triton kernel for the op, so that calling it by hand can be compared."""
    found = {one.name: one for one in registry.implementations(op)}
    wanted = next((found[name] for name in ("triton.row", "triton.gemm") if name in found), None)
    if wanted is None:
        return None
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.register(wanted)
    return dispatcher


def measure(device: str, rounds: int = ROUNDS, *, calls: bool = False, ops: Sequence[str] = OPS) -> Iterator[Line]:
    """Every line for one device; ``calls``: of ours alone, without misses and new sizes. ``ops``: of ``OPS``."""
    cuda = device == "cuda"
    null = Dispatcher(Catalog(entry_points=()))
    for contract in BOX:
        null.register(Null(contract.name))
    yield Line("", "an empty Python function", statistics.median(host_times({"": lambda: None}, False, rounds)[""]))
    for case in (case for case in cases(device) if case.op in ops):
        yield from through(registry.api.dispatcher, case, cuda, rounds, rivals=not calls)
        if cuda and (only := triton_only(case.op)) is not None:
            yield from through(only, case, cuda, rounds, rivals=not calls)
        yield from through(null, case, cuda, rounds, rivals=False)
        yield from parts(case, null, rounds)
    lists = dispatch_sizes.one("bench::moe", contract=dispatch_sizes.listed())
    yield from through(lists, listed(device), cuda, rounds, rivals=False)
    yield alternating(null, device, cuda, rounds)
    if calls:
        return
    yield from (Line(*line) for line in dispatch_sizes.lines(device, rounds))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="batches of each way")
    parser.add_argument(
        "--calls", action="store_true", help="our calls alone: no rivals, misses, new sizes and databases"
    )
    parser.add_argument(
        "--op", action="append", choices=OPS, help="calls of this op; repeatable; default: of all three"
    )
    parser.add_argument("--json", type=output_file, help="also write the lines and the environment there")
    options = parser.parse_args()
    device = registry.Device.of(options.device)
    environment = {"device": str(device), **device.software(), "host": platform.processor() or platform.machine()}
    environment["guard"] = "torch's TensorGuards" if torch_private.NATIVE_GUARD else "public"
    print("\n".join(f"{name:8} {value}" for name, value in environment.items()))
    lines = []
    for line in measure(options.device, options.rounds, calls=options.calls, ops=options.op or OPS):
        lines.append(line)
        shown = "       -" if line.value is None else f"{line.value:8.2f} {line.unit}"
        print(f"{line.op:10} {line.what:60} {shown}", flush=True)
    if options.json:
        record = {"environment": environment, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
