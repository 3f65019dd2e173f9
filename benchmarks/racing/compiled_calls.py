"""Calls of ops in a compiled program: host time an op, and GPU time an op, beside torch.compile of plain torch.

    python -m benchmarks.racing.compiled_calls [--device cuda] [--rows N] [--cols N] [--dtype NAME] [--links N]
                                               [--json FILE]

The program is a chain of rms_norm and softmax. Its forms: plain torch; torch's operators of the ops, which look up
their winner at each call (``configure(inline=False)``); and the same source with inlined winners, once for each
implementation that a database names as the winner of both ops. All are compiled by torch.compile with
``fullgraph=True``, and called under ``torch.no_grad()``.

Times are microseconds. The forms are timed in turn, a short batch of each at a time, and each figure is a median of the
batches. ``an op`` is the program's time divided by its number of ops. ``each more`` is the time of one more op: half of
the difference that one more link makes. ``entry`` is what remains of a program of one link without its two ops: torch's
guards, and the way into compiled code. ``GPU`` is the time of a CUDA graph of the program, divided by its ops.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import registry
from registry.backends.inductor.sizes import fresh
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Protocol, Store

from ..arguments import output_file

OPS = ("rms_norm", "softmax")
WINNERS = {
    "cpu": ("cpp.rows", "torch.compile", "torch.native"),
    "cuda": ("triton.row", "cuda.row", "torch.compile", "torch.native"),
}
ROUNDS, CALLS, REPLAYS = 41, 20, 50

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class CompiledForm:
    """Times of one form in microseconds; ``gpu_us`` is None on a CPU, and where no CUDA graph could be captured."""

    form: str
    winner: str
    op_us: float
    more_us: float
    entry_us: float
    gpu_us: float | None


def plain(links: int) -> Program:
    """The chain in plain torch."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(links):
            x = torch.softmax(torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6), -1)
        return x

    return program


def calls(dispatcher: Dispatcher, links: int) -> Program:
    """The chain of the registry's ops."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(links):
            x = dispatcher.call("softmax", dispatcher.call("rms_norm", x, weight))
        return x

    return program


@contextmanager
def won_by(name: str, sizes: Mapping[str, Any], device: registry.Device) -> Iterator[Dispatcher]:
    """A dispatcher whose database names ``name`` as the winner of both ops; it runs torch's operators in the block."""
    catalog = Catalog()
    environment = Environment(device.hardware(), device.software())
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "winners.db")
        with Store.open(database) as store:
            for op in map(catalog.op, OPS):
                problem, implementation = op.problem_of(dict(sizes)), catalog.implementation(op.name, name)
                config = dict(implementation.default(problem, device))
                candidate = CandidateKey(name, implementation.fingerprint(), config)
                store.publish(
                    store.start_run(environment),
                    Decision(problem_key(op, problem), environment, Protocol("cold"), candidate, median_us=1.0),
                )
        dispatcher = Dispatcher(catalog, database)
        former = operators.serve(dispatcher)
        try:
            yield dispatcher
        finally:
            operators.serve(former)


def compiled(program: Program, args: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    """The program compiled for these arguments, and run."""
    # as another function: of one function a second program would be compiled for varying numbers of links
    function = torch.compile(fresh(program), fullgraph=True)
    for _ in range(3):
        function(*args)
    return lambda: function(*args)


def in_turn(ways: Mapping[str, Callable[[], Any]], cuda: bool) -> dict[str, float]:
    """The median host time of each way in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                way()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
            if cuda:
                torch.cuda.synchronize()
    return {name: statistics.median(found) for name, found in times.items()}


def gpu_time(way: Callable[[], Any]) -> float:
    """The time of a CUDA graph of one call in microseconds."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        way()
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / REPLAYS * 1e3


def measure(device: registry.Device, sizes: Mapping[str, Any], links: int) -> Iterator[CompiledForm]:
    """Times of all forms: each winner is measured beside plain torch and torch's operators."""
    cuda = device.type == "cuda"
    dtype = getattr(torch, sizes["dtype"])
    x = torch.randn(sizes["rows"], sizes["cols"], dtype=dtype, device=device.torch)
    weight = torch.ones(sizes["cols"], dtype=dtype, device=device.torch)
    box = [one.name for one in registry.implementations("softmax") if device.type in one.device_types]
    for winner in [name for name in WINNERS[device.type] if name in box]:
        with won_by(winner, sizes, device) as dispatcher:
            forms: dict[str, Callable[[int], Program]] = {
                "plain torch": plain,
                "operators": partial(calls, dispatcher),
                "inlined": partial(calls, dispatcher),
            }
            ways: dict[str, Callable[[], Any]] = {}
            for form, make in forms.items():
                dispatcher.configure(inline=form != "operators")
                for count in (1, links):
                    ways[f"{form} {count}"] = compiled(make(count), (x, weight))
            ways["eager"] = partial(calls(dispatcher, links), x, weight)
            ways["eager"]()
            times = in_turn(ways, cuda)
            for form in forms:
                whole, one = times[f"{form} {links}"], times[f"{form} 1"]
                gpu = gpu_time(ways[f"{form} {links}"]) / (2 * links) if cuda else None
                more = (whole - one) / (2 * links - 2)
                yield CompiledForm(form, winner, whole / (2 * links), more, one - 2 * more, gpu)
            eager = times["eager"] / (2 * links)
            yield CompiledForm("eager calls", winner, eager, eager, 0.0, None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--cols", type=int, help="by default 4096 on a GPU, 64 on a CPU")
    parser.add_argument("--dtype", help="by default bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--links", type=int, default=8, help="rms_norm and softmax in turn, so many times")
    parser.add_argument("--json", type=output_file, help="also write the times and the environment there")
    options = parser.parse_args()
    if options.links < 2:
        parser.error(f"--links {options.links}: expected at least 2, whose times are compared with those of 1")
    if options.device == "cpu":
        torch.set_num_threads(1)
    device = registry.Device.of(options.device)
    cuda = device.type == "cuda"
    sizes = {"rows": options.rows, "cols": options.cols or (4096 if cuda else 64)}
    sizes["dtype"] = options.dtype or ("bfloat16" if cuda else "float32")
    environment = {"device": str(device), **device.software(), "host": platform.processor() or platform.machine()}
    environment |= {"sizes": str(sizes), "links": str(options.links)}
    print("\n".join(f"{name:8} {value}" for name, value in environment.items()))
    print(f"{'winner':14} {'form':12} {'µs an op':>9} {'each more':>10} {'entry':>7} {'GPU':>7}")
    lines = []
    with torch.no_grad():
        for line in measure(device, sizes, options.links):
            lines.append(line)
            gpu = "-" if line.gpu_us is None else f"{line.gpu_us:.2f}"
            print(
                f"{line.winner:14} {line.form:12} {line.op_us:9.2f} {line.more_us:10.2f} {line.entry_us:7.2f} {gpu:>7}",
                flush=True,
            )
    if options.json:
        record = {"environment": environment, "times": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
