"""Dispatch against the alternatives that a user could install: torch, torch.compile and other projects' kernels.

    python -m benchmarks.against_peers [--shapes FILE] [--op layer_norm] [--without torch.compile] [--write FOLDER]

For every problem it times ``registry.op`` as it stands (tuned, shipped or default: the table says which step), every
implementation of the op by torch or by an adapted library, and other projects' kernels (benchmarks.racing.peers), all
in CUDA graphs with cold L2 and in turns (benchmarks.racing.device_timing), and a copy of as many bytes as the op moves
at least. An implementation that waits for the device at each call cannot be captured, and is named as left out. The
first table has a line for each problem with the best of each project. Exits with 1 where dispatch is slower than the
best of them by more than 2%.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import registry
from registry import Device, Implementation, Op, Problem
from registry.discovery.answers import refusals
from registry.tuner.shapes.shapes import read_shapes

from .arguments import output_folder
from .racing import peers
from .racing.defaults import with_defaults
from .racing.device_timing import Call, Race, ratio
from .racing.projects import ADAPTERS, project_of, projects_in, versions

SHAPES = Path(__file__).parent / "shapes" / "decoder.yaml"
ROUNDS = 25
SLOWER = 1.02
"""The largest ratio of dispatch's time to the best rival's that is no loss."""
OURS, COPY = "registry", "copy"


@dataclass(frozen=True)
class Row:
    """One problem. ``over``: dispatch's time over that of ``best``, the fastest rival; ``times`` are medians in µs."""

    op: str
    problem: str
    step: str
    runs: str
    best: str
    over: float | None
    times: dict[str, float]
    faults: dict[str, str]

    @property
    def lost(self) -> bool:
        """Whether a rival is faster by more than ``SLOWER`` allows."""
        return self.over is not None and self.over > SLOWER


def measure(op: Op, problem: Problem, device: Device, without: Sequence[str] = ()) -> Row:
    """Race dispatch, torch, other projects and a copy on one problem; ``without`` names rivals that are left out."""
    values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
    call = registry.op(op.name)
    call(*values)
    found = registry.explain(op.name, *values)
    rivals = [each for each in _of_others(op, problem, device) if each.name not in without]
    built, faults = with_defaults(op, problem, rivals, values, device)
    contestants: dict[str, Call] = {OURS: call, **built}
    for name, peer in peers.calls(problem, values):
        if isinstance(peer, str):
            faults[name] = peer
        else:
            contestants[name] = peer
    moved = op.floor(problem).bytes
    contestants[COPY] = _copies(moved, device)
    race = Race(contestants, values, moved)
    times = race.times(ROUNDS)
    race.close()
    return _row(problem, (found.step, found.implementation), times, faults | race.faults)


def _of_others(op: Op, problem: Problem, device: Device) -> list[Implementation]:
    """What torch and the adapted libraries have for a problem."""
    return [
        each
        for each in registry.implementations(op.name)
        if each.name.partition(".")[0] in ("torch", *ADAPTERS)
        and device.type in each.device_types
        and not refusals(each, problem, device)
    ]


def _copies(moved: int, device: Device) -> Call:
    """A kernel that reads half of the bytes and writes as many, in each call of memory that was not used lately."""
    words = max(moved // 16, 1)
    cache = torch.cuda.get_device_properties(device.torch).L2_cache_size
    pairs = [
        [torch.zeros(words, dtype=torch.int64, device=device.torch) for _ in range(2)]
        for _ in range(2 + 3 * cache // max(moved, 1) if moved > cache // 32 else 1)
    ]
    turn = itertools.count()

    def call(*_: object) -> torch.Tensor:
        source, target = pairs[next(turn) % len(pairs)]
        return torch.bitwise_not(source, out=target)

    return call


def _row(problem: Problem, ran: tuple[str, str], times: dict[str, list[float]], faults: dict[str, str]) -> Row:
    if OURS in faults:
        raise SystemExit(f"{problem}: {faults[OURS]}")
    medians = {name: statistics.median(us) for name, us in times.items()}
    rivals = [name for name in medians if name not in (OURS, COPY)]
    best = min(rivals, key=lambda name: medians[name], default="")
    over = ratio(times, OURS, best) if best else None
    rounded = {name: round(us, 3) for name, us in medians.items()}
    return Row(problem.op, str(problem), *ran, best, over, rounded, faults)


def summary(rows: Sequence[Row]) -> str:
    """A markdown table with a line for each problem: dispatch, the best of each project, and whether dispatch lost."""
    projects = projects_in(name for row in rows for name in row.times if name not in (OURS, COPY))
    columns = ["op", "problem", "µs", *(f"{each} µs" for each in projects), "best", "µs / best", ""]
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for row in rows:
        best: dict[str, float] = {}
        for name, us in row.times.items():
            best[project_of(name)] = min(us, best.get(project_of(name), us))
        cells = [row.op, row.problem.removeprefix(f"{row.op}(").removesuffix(")"), f"{row.times[OURS]:.4g}"]
        cells += [f"{best[each]:.4g}" if each in best else "-" for each in projects]
        cells += [row.best or "-", "-" if row.over is None else f"{row.over:.3f}", "lost" if row.lost else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(rows: Sequence[Row]) -> str:
    """A markdown table an op, and how many problems dispatch lost."""
    parts = []
    for name in dict.fromkeys(row.op for row in rows):
        mine = [row for row in rows if row.op == name]
        rivals = sorted({each for row in mine for each in row.times} - {OURS, COPY})
        columns = ["problem", "step", "runs", "µs", "of copy", *(f"{each} / ours" for each in rivals)]
        lines = [f"| {' | '.join(columns)} |"]
        lines.append("|" + " --- |" * (5 + len(rivals)))
        lines += [_line(row, rivals) for row in mine]
        overs = [row.over for row in mine if row.over is not None]
        if overs:
            mean, lost = statistics.geometric_mean(overs), sum(row.lost for row in mine)
            lines.append(
                f"\n{len(overs)} problems: dispatch's time over the best rival's is {mean:.3f} (geometric mean), "
                f"{max(overs):.3f} at worst; {lost} lost by more than {SLOWER - 1:.0%}."
            )
        parts.append(f"**{name}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _line(row: Row, rivals: Sequence[str]) -> str:
    ours = row.times[OURS]
    cells = [row.problem.removeprefix(f"{row.op}(").removesuffix(")"), row.step, row.runs, f"{ours:.4g}"]
    cells.append(f"{row.times[COPY] / ours:.2f}" if COPY in row.times else "-")
    cells += [f"{row.times[each] / ours:.2f}" if each in row.times else "-" for each in rivals]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every problem of the file on this GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="a shapes file; default: a decoder's ops")
    parser.add_argument("--op", action="append", default=[], help="only this op; may be repeated")
    parser.add_argument("--without", action="append", default=[], help="a rival of torch's to leave out; repeatable")
    parser.add_argument("--write", type=output_folder, help="folder for against_peers.json and against_peers.md")
    options = parser.parse_args(arguments)
    device = Device.best()
    if device.type != "cuda":
        print("against_peers: needs a GPU", file=sys.stderr)
        return 2
    catalog = registry.api.dispatcher.catalog
    problems = [each for each in read_shapes(options.shapes, catalog).all if not options.op or each.op in options.op]
    rows: list[Row] = []
    for problem in problems:
        rows.append(measure(catalog.op(problem.op), problem, device, options.without))
        print(f"{len(rows)}/{len(problems)} {rows[-1].problem}: {rows[-1].over}", file=sys.stderr)
        if options.write:
            text = f"{summary(rows)}\n\n{report(rows)}\n\n{device.name}; {_software(device)}"
            # after each problem: a run that is stopped keeps its measurements
            (options.write / "against_peers.md").write_text(text + "\n")
            (options.write / "against_peers.json").write_text(
                json.dumps([asdict(row) for row in rows], indent=1) + "\n"
            )
    print(f"{summary(rows)}\n\n{report(rows)}\n\n{device.name}; {_software(device)}")
    for row in rows:
        for name, fault in row.faults.items():
            print(f"{row.problem}: {name}: {fault}", file=sys.stderr)
    return int(any(row.lost for row in rows))


def _software(device: Device) -> str:
    found = {**device.software(), **versions()}
    return ", ".join(f"{name} {version}" for name, version in found.items())


if __name__ == "__main__":
    sys.exit(main())
