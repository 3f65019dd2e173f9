"""A decoder's ops on a CPU that was never tuned: the C++ kernels' defaults beside torch's, and what a call runs.

    python -m benchmarks.models.untuned_ops [--shapes benchmarks/shapes/cpu_decoder.yaml] [--seconds 0.4]

Of each problem torch.native and each C++ implementation, in the configuration that each declares as its default, are
called in turns. The table has, of each op and implementation, torch's median over its own: the geometric mean over
problems, and the least and the largest; and of how many problems an untuned call runs it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from registry import Device, Problem
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.situation import Situation
from registry.dispatch.resolve.winners import Winners
from registry.tuner.shapes.shapes import read_shapes

SHAPES = Path(__file__).parents[1] / "shapes" / "cpu_decoder.yaml"
BASE = "torch.native"
_LEAST_ROUNDS = 3


@dataclass
class Standing:
    """torch's time over an implementation's, a value a problem, and at how many problems an untuned call runs it."""

    ratios: list[float] = field(default_factory=list)
    chosen: int = 0


def medians(problem: Problem, catalog: Catalog, device: Device, seconds: float) -> Mapping[str, float]:
    """Seconds of a call by implementation: torch's, and those in C++ that support the problem."""
    op = catalog.op(problem.op)
    values = op.inputs(problem, "normal", torch.Generator().manual_seed(0))
    plans = {}
    for one in catalog.implementations(problem.op):
        if (one.name == BASE or one.name.startswith("cpp.")) and not refusals(one, problem, device):
            candidate = Candidate(one, one.default(problem, device))
            plans[one.name] = build(op, candidate, problem, op.arguments(values), device)
            plans[one.name](*values)
    times: dict[str, list[float]] = {name: [] for name in plans}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(times[BASE]) < _LEAST_ROUNDS:
        for name, plan in plans.items():
            started = time.perf_counter()
            plan(*values)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def untuned(problem: Problem, catalog: Catalog, device: Device) -> str:
    """The name of the implementation that a call runs where nothing is tuned or shipped."""
    op = catalog.op(problem.op)
    able = catalog.implementations(problem.op)
    situation = Situation(op, problem, device, able, Winners().of(op, device))
    candidate = next(choices(situation, None, [])).candidate
    return "" if candidate is None else candidate.implementation.name


def main(arguments: Sequence[str] | None = None) -> dict[tuple[str, str], Standing]:
    """Print the table; returns its rows by op and implementation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, default=SHAPES)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a problem, three rounds at least")
    options = parser.parse_args(arguments)
    catalog, device = Catalog(), Device.of("cpu")
    found: dict[tuple[str, str], Standing] = {}
    for problem in read_shapes(options.shapes, catalog).all:
        times, runs = medians(problem, catalog, device, options.seconds), untuned(problem, catalog, device)
        for name in times.keys() - {BASE}:
            standing = found.setdefault((problem.op, name), Standing())
            standing.ratios.append(times[BASE] / times[name])
            standing.chosen += name == runs
    print(f"\n{device.name} ({device.architecture}), {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| op | implementation | problems | torch over it | least | largest | runs untuned |\n|" + " --- |" * 7)
    for (op, name), one in found.items():
        mean = math.exp(statistics.fmean(map(math.log, one.ratios)))
        shown = f"{mean:.2f} | {min(one.ratios):.2f} | {max(one.ratios):.2f}"
        print(f"| {op} | {name} | {len(one.ratios)} | {shown} | {one.chosen} |")
    return found


if __name__ == "__main__":
    sys.exit(not main())
