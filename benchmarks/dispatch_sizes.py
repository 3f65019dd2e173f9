"""Host time of calls that are no hit: a miss, another size of what is bound, attributes that change, many winners."""

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

WIDTHS = 20
WINNERS = 10_000

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


def one(op: str, *, contract: registry.Op | None = None) -> Dispatcher:
    """A dispatcher with nothing but ``Nothing``."""
    dispatcher = Dispatcher(Catalog(entry_points=()))
    if contract is not None:
        dispatcher.catalog.define(contract)
    dispatcher.register(Nothing(op))
    return dispatcher


def sizes(device: str, rounds: int) -> Iterator[Line]:
    """A miss and a new size, of an implementation that does nothing and of the fastest one known here."""
    count = 4 * rounds
    kinds = {"null": one("softmax"), "the box": Dispatcher()}
    for name, dispatcher in kinds.items():
        call = dispatcher.op("softmax")
        call(torch.randn(8, 4096, device=device))
        rows = [(torch.randn(each, 4096, device=device),) for each in range(9, 9 + count)]
        yield "softmax", f"{name}: a new size of a known variant, beyond a hit", first_calls(call, rows), "µs"
    cols = [(torch.randn(2, each, device=device),) for each in range(64, 64 + count)]
    yield "softmax", "null: a miss, beyond a hit", first_calls(kinds["null"].op("softmax"), cols), "µs"


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
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'many.db'}"
        _publish(database, registry.Device.of(device), count)
        dispatcher = one("softmax")
        dispatcher.configure(database=database)
        call, x = dispatcher.op("softmax"), torch.randn(8, 4096, device=device)
        tracemalloc.start()
        start = time.perf_counter()
        call(x)
        first, held = (time.perf_counter() - start) * 1e6, tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        what = f"null: {count:,} winners in the database"
        yield "softmax", f"{what}, first call", first, "µs"
        yield "softmax", f"{what}, memory held", held / 2**20, "MiB"
        cols = [(torch.randn(2, each, device=device),) for each in range(64, 64 + 4 * rounds)]
        yield "softmax", f"{what}, a miss beyond a hit", first_calls(call, cols), "µs"


def _publish(database: str, device: registry.Device, count: int) -> None:
    environment = Environment(device.hardware(), device.software())
    with Store.open(database) as store:
        run = store.start_run(environment)
        for each in range(count):
            dims: dict[str, int | float | str | bool] = {
                "rows": 1 + each % 50,
                "cols": 64 + each // 50,
                "dtype": "float32",
            }
            store.publish(
                run,
                Decision(
                    problem=ProblemKey("softmax", 1, dims, ("cols", "dtype")),
                    environment=environment,
                    protocol=Protocol("cold"),
                    candidate=CandidateKey("null.nothing", "1", {}),
                    median_us=1.0,
                    floor_us=1.0,
                    verdict="new",
                ),
            )


def lines(device: str, rounds: int) -> Iterator[Line]:
    """Every line for one device."""
    with torch.no_grad():
        yield from sizes(device, rounds)
        yield from attributes(device, rounds)
        yield from widths(device, rounds)
        yield from winners(device, rounds, WINNERS if rounds > 9 else WINNERS // 20)
