"""Host time of calls off the hot path: a miss, another size of a plan, attributes that change, many winners."""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.contract import Floor, Tolerance
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from registry.problem import Arguments
from registry.space import Config
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store
from tuning_db.exchange import DecisionLine, ExchangeLine, RunLine, WinnerLine
from tuning_db.records import StoredRun as TuningRun
from tuning_db.records import now

WIDTHS = 20
WINNERS = 10_000
TURNS = 5
"""How often the lines of new sizes are measured, each time by dispatchers of their own."""

Line = tuple[str, str, float, str]
"""Op, what was timed, a number, its unit."""


def first_calls(call: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> float:
    """Median microseconds that the first call with each of these arguments takes longer than its second one."""
    times = []
    for args in calls:
        start = time.perf_counter()
        call(*args)
        middle = time.perf_counter()
        call(*args)
        times.append((middle - start - (time.perf_counter() - middle)) * 1e6)
    return statistics.median(times)


def each_call(call: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> float:
    """Median microseconds of a call, one after another."""
    times = []
    for args in calls:
        start = time.perf_counter()
        call(*args)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


class Nothing(registry.Implementation):
    """Computes nothing, at every size."""

    device_types = frozenset({"cpu", "cuda"})
    any_size = True

    def __init__(self, op: str) -> None:
        self.op, self.name = op, "null.nothing"

    def fingerprint(self) -> str:
        return "1"

    def bind(self, _problem: registry.Problem, _config: Config, _device: registry.Device, _built: Built) -> Run:
        return lambda *_: None


class Configured(Nothing):
    """Computes nothing, by one of 20 configs."""

    def __init__(self, op: str, fingerprint: str) -> None:
        super().__init__(op)
        self._fingerprint = fingerprint

    def fingerprint(self) -> str:
        return self._fingerprint

    def space(self, _problem: registry.Problem, _device: registry.Device) -> registry.Space:
        return registry.Space(block=range(20))


def shifted(read: bool) -> registry.Op:
    """An op with an int attribute, which its problem reads or not."""

    def problem(arguments: Arguments) -> registry.Problem:
        position = arguments.integer("position") if read else 1
        return registry.Problem("bench::shifted", {"n": arguments.tensor("x").numel, "position": position})

    return registry.Op(
        name="bench::shifted",
        schema="bench::shifted(Tensor x, int position) -> Tensor y",
        version=1,
        reference=lambda x, position: x + position,
        fake=lambda x, _: torch.empty(x.shape, dtype=x.dtype, device=x.device),
        problem=problem,
        inputs=lambda problem, _kind, _generator: (torch.zeros(int(problem.n)), 1),
        floor=lambda _: Floor(0, 0),
        tolerance=Tolerance({}, {}, lambda _, reference: reference),
        static=frozenset(),
        dynamic=frozenset({"n", "position"}),
    )


def listed() -> registry.Op:
    """An op of a tensor, a list of tensors and a list of ints that its problem does not read."""
    return registry.Op(
        name="bench::moe",
        schema="bench::moe(Tensor x, Tensor[] weights, int[] sizes) -> Tensor y",
        version=1,
        reference=lambda x, weights, _: x + sum(weights),
        fake=lambda x, *_: torch.empty(x.shape, dtype=x.dtype, device=x.device),
        problem=lambda arguments: {"n": arguments.tensor("x").numel},
        inputs=lambda problem, _kind, _generator: (torch.zeros(int(problem.n)), [torch.zeros(int(problem.n))], [1]),
        floor=lambda _: Floor(0, 0),
        tolerance=Tolerance({}, {}, lambda _, reference: reference),
        static=frozenset(),
        dynamic=frozenset({"n"}),
    )


def one(op: str, *, contract: registry.Op | None = None, by: Nothing | None = None) -> Dispatcher:
    """A dispatcher with one implementation: ``by``, or else ``Nothing``."""
    dispatcher = Dispatcher(Catalog(entry_points=()))
    if contract is not None:
        dispatcher.catalog.define(contract)
    dispatcher.register(by or Nothing(op))
    return dispatcher


def in_turns(lines: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """Each line with its median over some turns: one takes milliseconds, in which a host may be slow."""
    turns = [list(lines()) for _ in range(TURNS)]
    for same in zip(*turns, strict=True):
        op, what, _, unit = same[0]
        yield op, what, statistics.median(value for _, _, value, _ in same), unit


def sizes(device: str, rounds: int) -> Iterator[Line]:
    """A miss and a new size, of an implementation that does nothing and of the fastest one known here."""
    count = 4 * rounds
    kinds = {"null": one("softmax"), "the box": Dispatcher()}
    for name, dispatcher in kinds.items():
        call = dispatcher.op("softmax")
        call(torch.randn(8, 4096, device=device))
        rows = [(torch.randn(each, 4096, device=device),) for each in range(9, 9 + count)]
        yield "softmax", f"{name}: a new size of a known variant, beyond a hit", first_calls(call, rows), "µs"
    yield from views(device, count)
    cols = [(torch.randn(2, each, device=device),) for each in range(64, 64 + count)]
    yield "softmax", "null: a miss, beyond a hit", first_calls(kinds["null"].op("softmax"), cols), "µs"


def views(device: str, count: int) -> Iterator[Line]:
    """New sizes of tensors that are not row-major, not aligned, or recorded by autograd."""
    wide = torch.randn(10 + count, 4096 + 64, device=device)
    makers: dict[str, Callable[[int], torch.Tensor]] = {
        "a cache's columns": lambda rows: wide[:rows, :4096],
        "a transposed tensor": lambda rows: torch.randn(4096, rows, device=device).t(),
        "tensors at a multiple of 4 bytes": lambda rows: torch.randn(1 + rows * 4096, device=device)[1:].view(rows, -1),
    }
    call = one("softmax").op("softmax")
    for what, made in makers.items():
        call(made(8))
        calls = [(made(rows),) for rows in range(9, 9 + count)]
        yield "softmax", f"null: a new size of {what}, beyond a hit", first_calls(call, calls), "µs"
    with torch.enable_grad():
        calls = [(torch.randn(rows, 4096, device=device, requires_grad=True),) for rows in range(8, 9 + count)]
        call(*calls[0])
        yield "softmax", "null: a new size that is recorded, beyond a hit", first_calls(call, calls[1:]), "µs"


def attributes(device: str, rounds: int) -> Iterator[Line]:
    """An int attribute that is another one at each call."""
    x = torch.zeros(64, device=device)
    for read in (False, True):
        call = one("bench::shifted", contract=shifted(read)).op("bench::shifted")
        calls = [(x, position) for position in range(8 * rounds)]
        what = "read by the problem: a new size" if read else "read by nobody: a hit"
        yield "", f"null: an int attribute that changes each call, {what}", each_call(call, calls), "µs"


def widths(device: str, rounds: int) -> Iterator[Line]:
    """Weights of many widths in turn behind one activation."""
    a = torch.randn(1, 64, device=device, dtype=torch.bfloat16)
    weights = [torch.randn(16 * (1 + each), 64, device=device, dtype=torch.bfloat16) for each in range(WIDTHS)]
    packed = [registry.quantize(weight, bits=4, group_size=32) for weight in weights]
    call = one("gemm_int4").op("gemm_int4")
    calls = [(a, weight) for _ in range(2 + rounds) for weight in packed]
    for args in calls[: 2 * WIDTHS]:
        call(*args)
    what = f"null: registry.op(...), {WIDTHS} weight widths for one activation"
    yield "gemm_int4", what, each_call(call, calls[2 * WIDTHS :]), "µs"


def winners(device: str, rounds: int, count: int = WINNERS) -> Iterator[Line]:
    """A database with many winners of one op: the first call, a miss, and what is held in memory."""
    x = torch.randn(8, 4096, device=device)
    cols = [(torch.randn(2, each, device=device),) for each in range(64, 64 + 4 * rounds)]
    what = f"null: {count:,} winners in the database"
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "many.db", Path(folder) / "none.db"
        _publish(full, registry.Device.of(device), count)
        calls = [_from(database).op("softmax") for database in (empty, full)]
        without, first = [each_call(call, [(x,)]) for call in calls]
        yield "softmax", f"{what}, first call beyond one without any", first - without, "µs"
        yield "softmax", f"{what}, a miss beyond a hit", first_calls(calls[1], cols), "µs"
        yield "softmax", f"{what}, all stale, a miss beyond a hit", first_calls(_stale(full, x), cols), "µs"
        tracemalloc.start()
        held = _from(full)
        held.call("softmax", x)
        yield "softmax", f"{what}, memory held", tracemalloc.get_traced_memory()[0] / 2**20, "MiB"
        tracemalloc.stop()


def _from(database: Path, fingerprint: str = "1") -> Dispatcher:
    dispatcher = one("softmax", by=Configured("softmax", fingerprint))
    dispatcher.configure(database=database)
    return dispatcher


def _stale(database: Path, x: torch.Tensor) -> Callable[..., Any]:
    """A call for which the source has changed since all the winners were measured."""
    call = _from(database, "2").op("softmax")
    call(x)
    return call


def _publish(database: Path, device: registry.Device, count: int) -> None:
    """Stores winners of ``count`` problems, each with 20 configs to choose from."""
    environment = Environment(device.hardware(), device.software())
    run = TuningRun("benchmark", environment, now())
    lines: list[ExchangeLine] = [RunLine(run=run)]
    for each in range(count):
        decision = Decision(
            problem=ProblemKey(
                "softmax", 1, {"rows": 1 + each % 50, "cols": 64 + each // 50, "dtype": "float32"}, ("cols", "dtype")
            ),
            environment=environment,
            protocol=Protocol("cold"),
            candidate=CandidateKey("null.nothing", "1", {"block": each % 20}),
            median_us=1.0,
            floor_us=1.0,
            verdict="new",
        )
        lines += [DecisionLine(run=run.uid, decision=decision), WinnerLine(decision=decision.uid)]
    with Store.open(database) as store:
        store.add_lines(enumerate(lines, 1))


def lines(device: str, rounds: int) -> Iterator[Line]:
    """Every line for one device."""
    with torch.no_grad():
        yield from in_turns(lambda: sizes(device, rounds))
        yield from in_turns(lambda: attributes(device, rounds))
        yield from widths(device, rounds)
        yield from winners(device, rounds, WINNERS if rounds > 9 else WINNERS // 20)
