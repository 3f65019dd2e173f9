"""The nearest tuned problem's winner on a problem that is not tuned, against that problem's own winner.

    python -m benchmarks.unseen_shapes --tune FOLDER [--write benchmarks/results/h200]
    python -m benchmarks.unseen_shapes --seen FOLDER/seen.db --own FOLDER/own.db

``--tune`` makes both databases first: seen.db holds winners of unseen_seen.yaml only, own.db those of unseen_own.yaml.
For every problem of own.db dispatch is asked, with seen.db as its database, what it runs; that must be a nearest
winner. It then races the problem's own winner, the winner of the nearest tuned problem on the other side, the default
and torch, with benchmarks.racing.device_timing (on a CPU: in turns, by the clock). Exits with 1 when a target is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import registry
from registry import Device, Op, Problem, shipped
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from tuning_db import Decision, Store

from .arguments import output_folder
from .racing.device_timing import Call, Race, ratio

HERE = Path(__file__).parent
ROUNDS = 40
MEDIAN_TARGET = 1.10
WORST_TARGET = 1.30
NEAREST, OWN, DEFAULT, TORCH = "nearest", "own", "default", "torch"
TORCHS = ("torch.native", "torch.tinygemm", "torch.tinygemm_cpu")


@dataclass(frozen=True)
class Row:
    """One unseen problem. ``times`` are µs by contestant, a tuned neighbour named by its dynamic dimensions.

    ``ratio`` is the nearest winner's time over the own winner's, 1 where both are the same candidate; ``tuned_at`` the
    problem that the nearest winner is of, ``octaves`` away; ``misses`` why nearer ones were passed over.
    """

    problem: str
    tuned_at: str
    octaves: float
    nearest: str
    own: str
    ratio: float
    times: dict[str, float]
    candidates: dict[str, str]
    faults: dict[str, str]
    misses: tuple[str, ...]


@dataclass(frozen=True)
class Unseen:
    """A problem with its arguments, and what dispatch runs for it."""

    op: Op
    problem: Problem
    values: tuple[Any, ...]
    told: registry.Explanation

    @classmethod
    def ask(cls, decision: Decision, device: Device) -> Unseen:
        """Call the op on the problem; exits when anything but a nearest winner answers."""
        op = registry.ops()[decision.problem.op]
        problem = op.problem_of(decision.problem.dims)
        values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
        registry.call(op.name, *values)
        told = registry.explain(op.name, *values)
        if told.step != "nearest" or told.evidence is None:
            raise SystemExit(f"{problem}: answered by step {told.step!r}, expected 'nearest'\n{told}")
        return cls(op, problem, values, told)

    def candidate(self, implementation: str, config: Mapping[str, Any]) -> Candidate | None:
        """The candidate, if it may run this problem here."""
        device = Device.of(self.values[0].device)
        found = {each.name: each for each in registry.implementations(self.op.name)}.get(implementation)
        if found is None or device.type not in found.device_types or refusals(found, self.problem, device):
            return None
        return None if found.space(self.problem, device).violations(config) else Candidate(found, dict(config))

    def default(self) -> Candidate:
        """The candidate that dispatch would run untuned, by the declared heuristic."""
        device = Device.of(self.values[0].device)
        able = [
            each
            for each in registry.implementations(self.op.name)
            if device.type in each.device_types and not refusals(each, self.problem, device)
        ]
        first = max(able, key=lambda each: each.preference(self.problem, device))
        return Candidate(first, first.default(self.problem, device))

    def torchs(self) -> Candidate | None:
        """torch's own way, if there is one."""
        return next((found for name in TORCHS if (found := self.candidate(name, {}))), None)


def measure(unseen: Unseen, own: Decision, seen: Sequence[Decision], device: Device) -> Row:
    """Race all contestants on one problem."""
    candidates = _candidates(unseen, own, seen)
    arguments = unseen.op.arguments(unseen.values)
    calls: dict[str, Call] = {}
    faults: dict[str, str] = {}
    first: dict[str, str] = {}
    keys = {name: candidate.key for name, candidate in candidates.items()}
    for name, candidate in candidates.items():
        if first.setdefault(keys[name], name) == name:
            try:
                calls[name] = build(unseen.op, candidate, unseen.problem, arguments, device, untuned=name != OWN)
            except registry.RegistryError as fault:
                faults[name] = fault.message
    times, broken = raced(calls, unseen, device)
    faults |= broken
    if missing := {first[keys[name]] for name in (NEAREST, OWN)} & faults.keys():
        raise SystemExit(f"{unseen.problem}: {', '.join(f'{name}: {faults[name]}' for name in missing)}")
    medians = {name: statistics.median(us) for name, us in times.items()}
    same = first[keys[OWN]]
    told = unseen.told
    assert told.evidence is not None
    return Row(
        problem=str(unseen.problem),
        tuned_at=_dynamic(unseen.op, told.evidence),
        octaves=round(told.octaves, 3),
        nearest=str(candidates[NEAREST]),
        own=str(candidates[OWN]),
        ratio=1.0 if same == NEAREST else ratio(times, NEAREST, same),
        times={name: round(medians[first[key]], 3) for name, key in keys.items() if first[key] in medians},
        candidates={name: str(each) for name, each in candidates.items()},
        faults=faults,
        misses=told.misses,
    )


def _candidates(unseen: Unseen, own: Decision, seen: Sequence[Decision]) -> dict[str, Candidate]:
    nearest = unseen.candidate(unseen.told.implementation, unseen.told.config)
    own_winner = unseen.candidate(own.candidate.implementation, own.candidate.config)
    if nearest is None or own_winner is None:
        raise SystemExit(f"{unseen.problem}: the stored winner is no candidate of today's implementations")
    found = {NEAREST: nearest, OWN: own_winner}
    for decision in _both_sides(unseen.op, unseen.problem, seen):
        neighbour = unseen.candidate(decision.candidate.implementation, decision.candidate.config)
        if neighbour is not None:
            found[_dynamic(unseen.op, decision)] = neighbour
    found[DEFAULT] = unseen.default()
    if (plain := unseen.torchs()) is not None:
        found[TORCH] = plain
    return found


def _both_sides(op: Op, problem: Problem, seen: Sequence[Decision]) -> Iterator[Decision]:
    """The largest tuned problem below and the smallest above, along the only dynamic dimension."""
    (name,) = op.dynamic
    static = {dim: value for dim, value in problem.dims.items() if dim != name}
    near = [
        decision
        for decision in seen
        if decision.problem.op == op.name
        and {dim: value for dim, value in decision.problem.dims.items() if dim != name} == static
    ]

    def size(decision: Decision) -> int:
        return int(decision.problem.dims[name])

    here = int(problem.dims[name])
    yield from sorted((each for each in near if size(each) < here), key=size)[-1:]
    yield from sorted((each for each in near if size(each) > here), key=size)[:1]


def _dynamic(op: Op, decision: Decision) -> str:
    return " ".join(f"{name}={decision.problem.dims[name]}" for name in sorted(op.dynamic))


def raced(calls: Mapping[str, Call], unseen: Unseen, device: Device) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times by contestant, and why some have none."""
    if device.type == "cpu":
        return in_turns(calls, unseen.values), {}
    race = Race(calls, unseen.values, unseen.op.floor(unseen.problem).bytes)
    times = race.times(ROUNDS)
    race.close()
    return times, race.faults


def in_turns(calls: Mapping[str, Call], values: tuple[Any, ...]) -> dict[str, list[float]]:
    """Times by contestant, by the clock, in turns."""
    order, shuffle = list(calls), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for each in range(ROUNDS + 3):
        shuffle.shuffle(order)
        for name in order:
            began = time.perf_counter()
            calls[name](*values)
            if each >= 3:
                times[name].append((time.perf_counter() - began) * 1e6)
    return times


def report(rows: Sequence[Row]) -> str:
    """A markdown table, worst first, and the two figures that have targets."""
    lines = ["| problem | tuned at | octaves | nearest | own | nearest over own | default over own | torch over own |"]
    lines.append("|" + " --- |" * 8)
    for row in sorted(rows, key=lambda row: -row.ratio):
        own = row.times[OWN]
        others = [f"{row.times[name] / own:.2f}" if name in row.times else "-" for name in (DEFAULT, TORCH)]
        lines.append(
            f"| {row.problem} | {row.tuned_at} | {row.octaves:.2f} | {row.nearest} {row.times[NEAREST]:.4g} µs | "
            f"{'the same' if row.nearest == row.own else f'{row.own} {own:.4g} µs'} | {row.ratio:.3f} | "
            f"{' | '.join(others)} |"
        )
    median, worst = figures(rows)
    lines.append(
        f"\n{len(rows)} problems: nearest over own is {median:.3f} in the median (target {MEDIAN_TARGET:.2f}), "
        f"{worst:.3f} at worst (target {WORST_TARGET:.2f}); the same candidate in "
        f"{sum(row.nearest == row.own for row in rows)}; the other side's winner would have been faster by more than "
        f"5% in {sum(_other_side(row) < 0.95 for row in rows)}."
    )
    return "\n".join(lines)


def _other_side(row: Row) -> float:
    """The best neighbour's time over the time of the neighbour that dispatch chose."""
    known = {NEAREST, OWN, DEFAULT, TORCH}
    return (
        min((us for name, us in row.times.items() if name not in known), default=row.times[NEAREST])
        / (row.times[NEAREST])
    )


def figures(rows: Sequence[Row]) -> tuple[float, float]:
    """Median and worst of nearest over own."""
    ratios = [row.ratio for row in rows]
    return statistics.median(ratios), max(ratios)


def tune(shapes: Path, database: Path, options: Sequence[str]) -> None:
    """``tune`` as a user runs it; problems that the database already decides are skipped by it."""
    command = [sys.executable, "-m", "registry.cli.main", "tune", "--shapes", str(shapes), "--db", str(database)]
    code = subprocess.run([*command, *options], check=False, stdout=sys.stderr).returncode
    if code not in {0, 1}:  # 1: some problem was not decided; it is missing from the table then
        raise SystemExit(f"unseen_shapes: tune --shapes {shapes} ended with {code}")


def decisions(database: str, device: Device) -> list[Decision]:
    """The winners of this hardware in a database."""
    with Store.open(database, create=False, migrate=False) as store:
        return store.winners(hardware=device.hardware())


def compare(seen_db: str, own_db: str, device: Device) -> list[Row]:
    """A row for each problem of ``own_db``."""
    registry.configure(database=seen_db)
    seen, own = decisions(seen_db, device), decisions(own_db, device)
    known = {(each.problem.op, str(sorted(each.problem.dims.items()))) for each in seen}
    rows: list[Row] = []
    for decision in own:
        unseen = Unseen.ask(decision, device)
        told = unseen.told.evidence
        assert told is not None
        if (told.problem.op, str(sorted(told.problem.dims.items()))) not in known:
            raise SystemExit(f"{unseen.problem}: answered by a winner that is not in {seen_db}: {told.problem}")
        rows.append(measure(unseen, decision, seen, device))
        told_of = "".join(f"; {each}" for each in (*rows[-1].misses, *rows[-1].faults.values()))
        print(f"{len(rows)}/{len(own)} {rows[-1].problem}: {rows[-1].ratio:.3f}{told_of}", file=sys.stderr)
    return rows


def tell(name: str, found: str, rows: Sequence[Any], device: Device, folder: Path | None) -> None:
    """Print a report with its environment; into a folder also write it, and the rows as JSON."""
    software = dict(device.software())
    text = f"{found}\n\n{device.name}; {', '.join(f'{part} {version}' for part, version in software.items())}"
    print(text)
    if folder:
        record = {"device": device.name, "software": software, "rows": [asdict(row) for row in rows]}
        (folder / f"{name}.md").write_text(text + "\n")
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune if asked to, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=output_folder, metavar="FOLDER", help="tune both databases there first")
    parser.add_argument("--seen", help="database with the winners of tuned problems only")
    parser.add_argument("--own", help="database with the unseen problems' own winners")
    parser.add_argument(
        "--seen-shapes", type=Path, default=HERE / "shapes" / "unseen_seen.yaml", help="what --tune tunes into --seen"
    )
    parser.add_argument("--own-shapes", type=Path, default=HERE / "shapes" / "unseen_own.yaml", help="and into --own")
    parser.add_argument("--trials", help="passed on to tune")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", type=output_folder, help="folder for unseen_shapes.json and unseen_shapes.md")
    options = parser.parse_args(arguments)
    os.environ[shipped.VARIABLE] = "0"  # for tune, too: shipped winners and rules come from more problems
    if options.tune:
        options.seen, options.own = options.tune / "seen.db", options.tune / "own.db"
        passed = ["--device", options.device, *(["--trials", options.trials] if options.trials else [])]
        tune(options.seen_shapes, options.seen, passed)
        tune(options.own_shapes, options.own, passed)
    if not options.seen or not options.own:
        parser.error("give --tune FOLDER, or both --seen and --own")
    device = Device.of(options.device)
    rows = compare(str(options.seen), str(options.own), device)
    if not rows:
        raise SystemExit(f"unseen_shapes: {options.own} holds no winner of {device.name}")
    tell("unseen_shapes", report(rows), rows, device, options.write)
    median, worst = figures(rows)
    return int(median > MEDIAN_TARGET or worst > WORST_TARGET)


if __name__ == "__main__":
    sys.exit(main())
