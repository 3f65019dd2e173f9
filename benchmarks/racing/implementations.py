"""Every implementation of an op beside other projects' kernels, on each problem of a shapes file, in one run.

    python -m benchmarks.racing.implementations --op top_k_top_p_sampling [--shapes FILE] [--rounds N] [--json FILE]

The contestants are what dispatch runs (tune first), each implementation of the registry that can be captured with its
default configuration, and the peers of benchmarks.racing.peers that are installed. All are captured into graphs, find
their inputs in memory and not in L2, and take turns; times are µs, medians of rounds. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import registry
from registry import Device, Op, Problem
from registry.discovery.answers import refusals
from registry.tuner.shapes.shapes import read_shapes

from ..arguments import output_file
from . import peers
from .defaults import with_defaults
from .device_timing import Call, Race

SHAPES = Path(__file__).parents[1] / "shapes" / "latents.yaml"
OURS = "registry"


@dataclass(frozen=True)
class ProblemTimes:
    """Medians in µs by contestant, and why others have none; ``runs``: the implementation that dispatch chose."""

    problem: str
    runs: str
    times: dict[str, float]
    faults: dict[str, str]


def contestants(op: Op, problem: Problem, device: Device) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls of implementations with their defaults and of peers, by name, and why others do not take part."""
    values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
    there = [each for each in registry.implementations(op.name) if device.type in each.device_types]
    reasons = {each.name: refusals(each, problem, device) for each in there}
    supported = [each for each in there if not reasons[each.name]]
    calls, faults = with_defaults(op, problem, supported, values, device)
    calls = {OURS: registry.op(op.name), **calls}
    faults |= {name: told[0] for name, told in reasons.items() if told}
    for name, peer in peers.calls(problem, values):
        if isinstance(peer, str):
            faults[name] = peer
        else:
            calls[name] = peer
    return calls, faults


def measure(op: Op, problem: Problem, device: Device, rounds: int) -> ProblemTimes:
    """Race all contestants on one problem."""
    values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
    calls, faults = contestants(op, problem, device)
    calls[OURS](*values)
    runs = registry.explain(op.name, *values).implementation
    race = Race(calls, values, op.floor(problem).bytes)
    try:
        medians = {name: round(statistics.median(us), 3) for name, us in race.times(rounds).items()}
        return ProblemTimes(str(problem), runs, medians, faults | race.faults)
    finally:
        race.close()
        torch.cuda.empty_cache()


def table(rows: Sequence[ProblemTimes]) -> str:
    """A markdown table with a line for each problem and a column for each contestant."""
    names = list(dict.fromkeys(name for row in rows for name in (OURS, *sorted(row.times))))
    lines = [f"| problem | runs | {' | '.join(f'{name} µs' for name in names)} |", "|" + " --- |" * (2 + len(names))]
    for row in rows:
        cells = (f"{row.times[name]:.4g}" if name in row.times else "-" for name in names)
        lines.append(f"| {row.problem} | {row.runs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Race on this GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", required=True, help="the op, such as top_k_top_p_sampling")
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="a shapes file; default: benchmarks' latents.yaml")
    parser.add_argument("--rounds", type=int, default=25, help="default 25")
    parser.add_argument("--json", type=output_file, help="file for the measurements")
    options = parser.parse_args(arguments)
    device = Device.best()
    if device.type != "cuda":
        print("implementations: needs a GPU", file=sys.stderr)
        return 2
    catalog = registry.api.dispatcher.catalog
    problems = [each for each in read_shapes(options.shapes, catalog).all if each.op == options.op]
    if not problems:
        parser.error(f"{options.shapes} has no problem of {options.op}")
    rows: list[ProblemTimes] = []
    for problem in problems:
        rows.append(measure(catalog.op(problem.op), problem, device, options.rounds))
        print(f"{len(rows)}/{len(problems)} {rows[-1].problem}: {rows[-1].times}", file=sys.stderr)
        if options.json:
            # after each problem: a run that is stopped keeps its measurements
            Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    for name, fault in dict.fromkeys((name, fault) for row in rows for name, fault in row.faults.items()):
        print(f"{name}: {fault}", file=sys.stderr)
    print(f"{device.name}\n\n{table(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
