"""Are the stored winners really the fastest? An independent answer, in a process and with timing code of its own.

    tune --shapes benchmarks/shapes/truth.yaml --db truth.db
    python -m benchmarks.truth --db truth.db [--write benchmarks/results/h200]

For every tuned problem it times the stored winner, the default, the best few candidates of every implementation that
the run measured, and other projects' kernels (benchmarks.racing.peers), with benchmarks.racing.device_timing. It says
how far the winner is from the best candidate and from the best peer, and whether the stored interval of default over
winner holds the ratio measured here. A faster peer shows that a kernel is missing here, a faster candidate that the
winner is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

import registry
from registry import Device, Op, Problem
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from tuning_db import CandidateKey, Decision, Store, Trial

from .arguments import output_folder
from .racing import peers
from .racing.device_timing import Call, Race, ratio

ROUNDS = 40
EACH = 2
WINNER = "winner"


@dataclass(frozen=True)
class Row:
    """One problem. ``behind``: the winner's time over the best candidate's, ``behind_peer``: over the best peer's; the
    interval is the stored one of default/winner."""

    problem: str
    winner: str
    winner_us: float
    best: str
    behind: float
    peer: str
    behind_peer: float | None
    default: str
    default_ratio: float
    stored_ratio: float | None
    stored_low: float | None
    stored_high: float | None
    times: dict[str, float]
    faults: dict[str, str]

    @property
    def covered(self) -> bool:
        """Whether the stored interval holds this script's ratio of default to winner."""
        if self.stored_low is None or self.stored_high is None:
            return False
        return self.stored_low <= self.default_ratio <= self.stored_high


def measure(decision: Decision, trials: list[Trial], device: Device) -> Row:
    """Race all contestants on one tuned problem."""
    op = registry.ops()[decision.problem.op]
    problem = op.problem_of(decision.problem.dims)
    values = op.inputs(problem, op.kinds[0], torch.Generator(device.torch).manual_seed(7))
    default = _default(op, problem, device)
    contestants: dict[str, Call] = {}
    faults: dict[str, str] = {}
    rivals: list[str] = []
    for name, candidate in _candidates(op, decision, trials, default).items():
        contestants[name] = build(op, candidate, problem, op.arguments(values), device)
    for name, call in peers.calls(problem, values):
        if isinstance(call, str):
            faults[name] = call
        else:
            contestants[name] = call
            rivals.append(name)
    race = Race(contestants, values, op.floor(problem).bytes)
    times = race.times(ROUNDS)
    race.close()
    if missing := {WINNER, "default"} & race.faults.keys():
        raise SystemExit(f"{problem}: " + "; ".join(f"{name}: {race.faults[name]}" for name in missing))
    return _row(problem, decision, default, times, rivals, faults | race.faults)


def _row(
    problem: Problem,
    decision: Decision,
    default: Candidate,
    times: dict[str, list[float]],
    rivals: list[str],
    faults: dict[str, str],
) -> Row:
    medians = {name: statistics.median(us) for name, us in times.items()}
    best = min((name for name in medians if name not in rivals), key=lambda name: medians[name])
    peer = min((name for name in rivals if name in medians), key=lambda name: medians[name], default="")
    stored = decision.default_ratio
    return Row(
        problem=str(problem),
        winner=_named(decision.candidate),
        winner_us=medians[WINNER],
        best=best,
        behind=ratio(times, WINNER, best),
        peer=peer,
        behind_peer=ratio(times, WINNER, peer) if peer else None,
        default=str(default),
        default_ratio=ratio(times, "default", WINNER),
        stored_ratio=stored.value if stored else None,
        stored_low=stored.low if stored else None,
        stored_high=stored.high if stored else None,
        times={name: round(us, 3) for name, us in medians.items()},
        faults=faults,
    )


def _default(op: Op, problem: Problem, device: Device) -> Candidate:
    """The candidate that dispatch would run untuned, by the declared heuristic."""
    able = [
        implementation
        for implementation in registry.implementations(op.name)
        if device.type in implementation.device_types and not refusals(implementation, problem, device)
    ]
    first = max(able, key=lambda implementation: implementation.preference(problem, device))
    return Candidate(first, first.default(problem, device))


def _candidates(op: Op, decision: Decision, trials: list[Trial], default: Candidate) -> dict[str, Candidate]:
    known = {implementation.name: implementation for implementation in registry.implementations(op.name)}
    found = {WINNER: Candidate(known[decision.candidate.implementation], decision.candidate.config), "default": default}
    taken: dict[str, int] = {}
    for trial in sorted((t for t in trials if t.status == "ok"), key=lambda trial: trial.median_us or 0.0):
        name = trial.candidate.implementation
        taken[name] = taken.get(name, 0) + 1
        candidate = Candidate(known[name], trial.candidate.config)
        if taken[name] <= EACH and candidate.key != found[WINNER].key:
            found[str(candidate)] = candidate
    return found


def _named(key: CandidateKey) -> str:
    return f"{key.implementation}({', '.join(f'{name}={value}' for name, value in key.config.items())})"


def report(rows: list[Row]) -> str:
    """A markdown table and the counts."""
    lines = ["| problem | winner | µs | best candidate | winner over it | best peer | winner over it | stored | here |"]
    lines.append("|" + " --- |" * 9)
    for row in rows:
        stored = "-" if row.stored_low is None else f"{row.stored_low:.3f} to {row.stored_high:.3f}"
        best = "the winner" if row.best == WINNER else row.best
        peer = "-" if row.behind_peer is None else f"{row.behind_peer:.3f}"
        lines.append(
            f"| {row.problem} | {row.winner} | {row.winner_us:.4g} | {best} | {row.behind:.3f} | {row.peer or '-'} | "
            f"{peer} | {stored} | {row.default_ratio:.3f}{'' if row.covered else ' (outside)'} |"
        )
    within = [sum(row.behind <= limit for row in rows) for limit in (1.02, 1.05)]
    beaten = sum(row.behind_peer is not None and row.behind_peer > 1.02 for row in rows)
    covered = sum(row.covered for row in rows)
    lines.append(
        f"\n{len(rows)} problems: winner within 2% of the best candidate in {within[0]}, within 5% in {within[1]}; "
        f"a peer faster by more than 2% in {beaten}; the stored interval of default over winner holds this script's "
        f"ratio in {covered}."
    )
    return "\n".join(lines)


def main() -> int:
    """Measure every winner of the database on this device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True, help="the tuning database")
    parser.add_argument("--write", type=output_folder, help="folder for truth.json and truth.md")
    options = parser.parse_args()
    device = Device.best()
    if device.type != "cuda":
        print("truth: needs a GPU", file=sys.stderr)
        return 2
    with Store.open(options.db, create=False, migrate=False) as store:
        pairs = [(each, store.trials(each.problem)) for each in store.winners(hardware=device.hardware())]
    rows: list[Row] = []
    text = ""
    for decision, trials in pairs:
        rows.append(measure(decision, list(trials), device))
        print(f"{len(rows)}/{len(pairs)} {rows[-1].problem}: {rows[-1].behind:.3f}", file=sys.stderr)
        text = f"{report(rows)}\n\n{device.name}; {_software(device.software())}"
        if options.write:
            # after each problem: a run that is stopped keeps its measurements
            (options.write / "truth.md").write_text(text + "\n")
            (options.write / "truth.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(text)
    for row in rows:
        for name, fault in row.faults.items():
            print(f"{row.problem}: {name}: {fault}", file=sys.stderr)
    return 0


def _software(software: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in software.items())


if __name__ == "__main__":
    sys.exit(main())
