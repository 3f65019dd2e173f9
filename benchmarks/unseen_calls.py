"""The time of a call at an untuned size: against the size's own winner, and against torch's own operation.

    python -m benchmarks.unseen_calls --tune FOLDER [--write benchmarks/results/h200]
    python -m benchmarks.unseen_calls --seen FOLDER/seen.db --own FOLDER/own_calls.db

``--tune`` makes both databases first: seen.db holds winners of unseen_seen.yaml only, own_calls.db those of
unseen_calls.yaml. With seen.db as its database, and its problems warm, each problem of own_calls.db is called in a CUDA
graph that was captured before any call of that size, and eagerly. Where no size with its weights is tuned, one call of
another untuned size came before the capture. Beside both run the problem's own winner and torch: for 4-bit weights the
bf16 product with a dense weight, else torch's operator. On a CPU, in turns by the clock, there is no capture. Exits
with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import registry
from registry import Device, Op, Problem, Value, shipped
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from registry.dispatch.resolve.winners.neighbours import octaves_between, sizes_of
from tuning_db import Decision

from . import unseen_shapes
from .arguments import output_folder
from .racing.device_timing import Call, Race

HERE = Path(__file__).parent
MEDIAN_TARGET = 1.05
WORST_TARGET = 1.25
EAGER, CAPTURED, OWN, TORCH = "eager", "captured", "own", "torch"


@dataclass(frozen=True)
class CallRow:
    """One problem: median µs by contestant, and what ran: step, implementation with its configuration, reason."""

    problem: str
    own: str
    times: dict[str, float]
    ran: dict[str, str]
    reasons: dict[str, str]
    faults: dict[str, str]

    def over_own(self, name: str) -> float | None:
        """A contestant's time over that of the problem's own winner."""
        return self.times[name] / self.times[OWN] if name in self.times and OWN in self.times else None


class Calls:
    """``registry.call`` of one problem, as a contestant that keeps the answers of ``explain``."""

    def __init__(self, op: Op, told: dict[str, registry.Explanation]) -> None:
        self._op = op
        self._told = told

    def eager(self, *values: Any) -> Any:
        """One call; explained at the first."""
        outputs = registry.call(self._op.name, *values)
        if EAGER not in self._told:
            self._told[EAGER] = registry.explain(self._op.name, *values)
        return outputs

    def captured(self, *values: Any) -> Any:
        """One call while a stream is capturing; explained at the first."""
        if CAPTURED not in self._told:
            self._told[CAPTURED] = registry.explain(self._op.name, *values)
        return registry.call(self._op.name, *values)

    def neighbour(self, near: Sequence[Any]) -> Call:
        """A call of a tuned size with the weights of another, as a program that is warm has made it."""
        names = self._op.parsed.names

        def call(*values: Any) -> Any:
            mixed = [
                value if name in self._op.weights or not isinstance(value, torch.Tensor) else other
                for name, value, other in zip(names, values, near, strict=True)
            ]
            return registry.call(self._op.name, *mixed)

        return call


def measure(own: Decision, warm: Sequence[Problem], device: Device) -> CallRow:
    """Race all contestants on one problem, for a program that has called the problems of ``warm`` with its weights."""
    op = registry.ops()[own.problem.op]
    problem = op.problem_of(own.problem.dims)
    values = _inputs(op, problem, device, 7)
    told: dict[str, registry.Explanation] = {}
    calls = Calls(op, told)
    contestants: dict[str, Call] = {}
    before: dict[str, Call] = {}
    if device.type == "cuda":  # first: nothing of this size may be in memory
        contestants[CAPTURED] = calls.captured
        before[CAPTURED] = _warm(calls, op, warm, device)
    contestants[EAGER] = calls.eager
    faults: dict[str, str] = {}
    candidate = _candidate(op, problem, own, device)
    if candidate is None:
        faults[OWN] = "its own winner cannot run here any more"
    else:
        contestants[OWN] = build(op, candidate, problem, op.arguments(values), device)
    contestants[TORCH] = _torchs(op, problem, values, device)
    times, broken = _raced(contestants, before, op, problem, values, device)
    medians = {name: round(statistics.median(us), 3) for name, us in times.items()}
    ran = {name: f"{one.step}: {one.implementation}{dict(one.config) or ''}" for name, one in told.items()}
    reasons = {name: one.reason for name, one in told.items()}
    return CallRow(str(problem), str(candidate), medians, ran, reasons, faults | broken)


def _inputs(op: Op, problem: Problem, device: Device, seed: int) -> tuple[Any, ...]:
    return op.draw(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(seed))


def called_before(problem: Problem, op: Op, seen: Sequence[Problem], own: Sequence[Problem]) -> list[Problem]:
    """Problems that a warm program has called with a problem's weights: the tuned sizes, else one untuned one."""

    def like(problems: Sequence[Problem]) -> list[Problem]:
        return [one for one in problems if all(one.dims[name] == problem.dims[name] for name in op.static)]

    others = [one for one in like(own) if one.dims != problem.dims]
    return (
        like(seen)
        or sorted(others, key=lambda one: octaves_between(*(sizes_of(op, each.dims) for each in (one, problem))))[:1]
    )


def _warm(calls: Calls, op: Op, near: Sequence[Problem], device: Device) -> Call:
    """A call that runs the op at each problem of ``near``, with the weights among the values that it is given."""
    each: list[Callable[..., Any]] = [calls.neighbour(_inputs(op, one, device, 3)) for one in near]

    def warm(*values: Any) -> None:
        for call in each:
            call(*values)

    return warm


def _candidate(op: Op, problem: Problem, own: Decision, device: Device) -> Candidate | None:
    found = {each.name: each for each in registry.implementations(op.name)}.get(own.candidate.implementation)
    if found is None or refusals(found, problem, device):
        return None
    config = dict(own.candidate.config)
    return None if found.space(problem, device).violations(config) else Candidate(found, config)


def _torchs(op: Op, problem: Problem, values: tuple[Any, ...], device: Device) -> Call:
    """torch's own operation: the op's baseline, and for 4-bit weights the product with a dense weight."""
    if op.name == "gemm_int4":
        dtype = getattr(torch, str(problem.dims["dtype"]))
        dense = torch.randn(int(problem.n), int(problem.k), device=device.torch, dtype=dtype)
        return lambda a, *_: torch.nn.functional.linear(a, dense)
    baseline = next((one for one in registry.implementations(op.name) if one.name == op.baseline), None)
    if baseline is None or refusals(baseline, problem, device):
        return op.reference
    return build(op, Candidate(baseline, baseline.default(problem, device)), problem, op.arguments(values), device)


def _raced(
    contestants: dict[str, Call],
    before: dict[str, Call],
    op: Op,
    problem: Problem,
    values: tuple[Any, ...],
    device: Device,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    if device.type == "cpu":
        return unseen_shapes.in_turns(contestants, values), {}
    race = Race(contestants, values, op.floor(problem).bytes, before)
    times = race.times(unseen_shapes.ROUNDS)
    race.close()
    return times, race.faults


def compare(seen_db: str, own_db: str, device: Device) -> list[CallRow]:
    """A row for each problem of ``own_db``."""
    registry.configure(database=seen_db)
    seen, own = unseen_shapes.decisions(seen_db, device), unseen_shapes.decisions(own_db, device)
    shapes: dict[str, list[dict[str, Value] | Problem]] = {}
    for one in seen:
        shapes.setdefault(one.problem.op, []).append(registry.ops()[one.problem.op].problem_of(one.problem.dims))
    registry.warmup(shapes, device=device.type)
    rows: list[CallRow] = []
    for decision in sorted(own, key=lambda one: (one.problem.op, str(sorted(one.problem.dims.items())))):
        op = registry.ops()[decision.problem.op]
        tuned, untuned = (
            [op.problem_of(one.problem.dims) for one in found if one.problem.op == op.name] for found in (seen, own)
        )
        rows.append(measure(decision, called_before(op.problem_of(decision.problem.dims), op, tuned, untuned), device))
        print(f"{len(rows)}/{len(own)} {rows[-1].problem}: {rows[-1].times} {rows[-1].faults}", file=sys.stderr)
    return rows


def figures(rows: Sequence[CallRow], name: str) -> tuple[float, float] | None:
    """Median and worst of a contestant's time over the own winner's; None where it did not run."""
    ratios = [ratio for row in rows if (ratio := row.over_own(name)) is not None]
    return (statistics.median(ratios), max(ratios)) if ratios else None


def report(rows: Sequence[CallRow]) -> str:
    """A markdown table, and the figures that have targets."""
    lines = ["| problem | eager | captured | own winner, µs | eager over own | captured over own | torch over own |"]
    lines.append("|" + " --- |" * 7)
    for row in rows:
        ratios = [row.over_own(name) for name in (EAGER, CAPTURED, TORCH)]
        shown = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        ran = [row.ran.get(name, "-") for name in (EAGER, CAPTURED)]
        own = f"{row.own} {row.times.get(OWN, float('nan')):.4g}"
        lines.append(f"| {row.problem} | {' | '.join(ran)} | {own} | {' | '.join(shown)} |")
    lines.append("")
    for name in (EAGER, CAPTURED):
        if (found := figures(rows, name)) is not None:
            lines.append(
                f"{name}: {found[0]:.3f} times the own winner's time in the median (target {MEDIAN_TARGET:.2f}), "
                f"{found[1]:.3f} at worst (target {WORST_TARGET:.2f})"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune if asked to, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=output_folder, metavar="FOLDER", help="tune both databases there first")
    parser.add_argument("--seen", help="database with the winners of tuned problems only")
    parser.add_argument("--own", help="database with the own winners of the problems that are called")
    shapes = HERE / "shapes"
    parser.add_argument("--seen-shapes", type=Path, default=shapes / "unseen_seen.yaml", help="tuned into --seen")
    parser.add_argument("--own-shapes", type=Path, default=shapes / "unseen_calls.yaml", help="tuned into --own")
    parser.add_argument("--trials", help="passed on to tune")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", type=output_folder, help="folder for unseen_calls.json and unseen_calls.md")
    options = parser.parse_args(arguments)
    os.environ[shipped.VARIABLE] = "0"  # for tune, too: shipped winners and rules come from more problems
    if options.tune:
        options.seen, options.own = options.tune / "seen.db", options.tune / "own_calls.db"
        passed = ["--device", options.device, *(["--trials", options.trials] if options.trials else [])]
        tune = partial(unseen_shapes.tune, options=passed)
        tune(options.seen_shapes, options.seen)
        tune(options.own_shapes, options.own)
    if not options.seen or not options.own:
        parser.error("give --tune FOLDER, or both --seen and --own")
    device = Device.of(options.device)
    warnings.simplefilter("always", registry.DispatchWarning)
    rows = compare(str(options.seen), str(options.own), device)
    if not rows:
        raise SystemExit(f"unseen_calls: {options.own} holds no winner of {device.name}")
    unseen_shapes.tell("unseen_calls", report(rows), rows, device, options.write)
    found = [pair for name in (EAGER, CAPTURED) if (pair := figures(rows, name)) is not None]
    return int(any(median > MEDIAN_TARGET or worst > WORST_TARGET for median, worst in found))


if __name__ == "__main__":
    sys.exit(main())
