"""A database of many trials, made in seconds: the records of a few are stored, and copied by the database itself.

    python -m benchmarks.scale.database FILE --trials 100000

A problem has a hundred trials of 16 implementations, a winner, and two hundred measurements of the finals.
"""

from __future__ import annotations

import argparse
import sqlite3
from dataclasses import replace
from pathlib import Path

from tuning_db import CandidateKey, Decision, Environment, Final, Interval, ProblemKey, Protocol, Store, Trial
from tuning_db.records import Role

EACH = 100
"""Trials of a problem."""
FINALS = 200
"""Measurements in a problem's finals."""

_ENVIRONMENT = Environment(
    {
        "type": "cuda",
        "name": "NVIDIA H200",
        "capability": [9, 0],
        "multiprocessors": 132,
        "memory_bytes": 150_754_820_096,
    },
    {"driver": "580.95", "cuda": "13.0", "torch": "2.11.0", "triton": "3.6.0", "python": "3.12.3"},
)
_PROTOCOL = Protocol("cold", {"clock": "cuda_event", "cache_bytes": 62_914_560, "samples": 20, "version": 4})
_DETAILS = {
    "error": 0.000123456, "torch_error": 0.000234567, "launches": 64, "copies": 12, "sampler": "graph",
    "clocks": {"sm_mhz": 1980, "memory_mhz": 3201, "power_w": 412.5, "throttled": []}, "contended": False,
}  # fmt: skip
_COPIED = ("message", "samples", "censored", "stop_reason", "artifact_hash", "details")
_SHARED = ("hardware_id", "software_id", "protocol_id", "run_id")


def fill(path: Path, trials: int) -> None:
    """Makes the database ``path`` with about ``trials`` trials."""
    problems = [_problem(number) for number in range(max(1, trials // EACH))]
    candidates = [_candidate(number) for number in range(EACH)]
    with Store.open(path) as store:
        run = store.start_run(_ENVIRONMENT, {"problems": len(problems)})
        store.add_trials(run, [_trial(problems[0], candidate, place) for place, candidate in enumerate(candidates)])
        store.add_trials(run, [_trial(problem, candidates[0], 0) for problem in problems[1:]])
        store.publish(run, _decision(problems[0], candidates[1]), _finals(candidates))
    with sqlite3.connect(path) as database:
        _copy(database)
        database.commit()
        database.execute("ANALYZE")
    database.close()


def _copy(database: sqlite3.Connection) -> None:
    """Gives every problem a copy of the first one's trials, decision, finals and winner, at times of their own."""
    copied, shared = ", ".join(f"one.{name}" for name in _COPIED), ", ".join(f"one.{name}" for name in _SHARED)
    us = "one.median_us * (1 + 0.001 * (problem.id % 97))"
    database.execute(
        "INSERT INTO trial (uid, problem_id, candidate_id, created, status, median_us,"
        f" {', '.join((*_COPIED, *_SHARED))}) SELECT lower(hex(randomblob(16))), problem.id, one.candidate_id,"
        f" one.created, one.status, {us}, {copied}, {shared}"
        " FROM problem, (SELECT * FROM trial WHERE problem_id = 1 AND id > 1) AS one WHERE problem.id > 1"
    )
    names = [row[1] for row in database.execute("PRAGMA table_info(decision)")]
    others = [name for name in names if name not in {"id", "uid", "problem_id", "median_us"}]
    kept = ", ".join(f"one.{name}" for name in others)
    database.execute(
        f"INSERT INTO decision (uid, problem_id, median_us, {', '.join(others)})"
        f" SELECT lower(hex(randomblob(16))), problem.id, {us}, {kept}"
        " FROM problem, decision AS one WHERE problem.id > 1 AND one.id = 1"
    )
    database.execute(
        "INSERT INTO final (decision_id, ordinal, candidate_id, role, block, round, position, us)"
        " SELECT decision.id, ordinal, one.candidate_id, role, block, round, position,"
        " us * (1 + 0.001 * (decision.id % 97))"
        " FROM decision, final AS one WHERE decision.id > 1 AND one.decision_id = 1"
    )
    database.execute(
        "INSERT INTO winner (problem_id, hardware_id, software_id, regime, decision_id)"
        " SELECT problem_id, hardware_id, software_id, 'cold', id FROM decision WHERE id > 1"
    )


def _problem(number: int) -> ProblemKey:
    op = ("softmax", "rms_norm", "layer_norm", "gelu_rows")[number % 4]
    rows, cols = 1 + number // 4 % 50, 64 * (1 + number // 200)
    return ProblemKey(op, 1, {"rows": rows, "cols": cols, "dtype": "bfloat16"}, ("cols", "dtype"))


def _candidate(number: int) -> CandidateKey:
    config = {"BLOCK": 2 ** (number % 8), "num_warps": 2 ** (number % 5), "num_stages": 1 + number // 40, "n": number}
    return CandidateKey(f"acme.kernel{number % 16}", "0123456789abcdef" * 4, config)


def _trial(problem: ProblemKey, candidate: CandidateKey, place: int) -> Trial:
    us = 20.0 + (place * 37) % 89 + 0.123
    trial = Trial(
        problem, candidate, _ENVIRONMENT, _PROTOCOL, "ok", median_us=us,
        samples=tuple(us + 0.0137 * n for n in range(20)), stop_reason="the interval is narrow", details=_DETAILS,
    )  # fmt: skip
    if place % 10 == 9:
        message = "the output y is 0.0312 where 0.0625 is expected, at (3, 17): 12 of 4096 elements are wrong"
        return replace(trial, status="wrong_result", message=message, median_us=None, samples=())
    return trial


def _decision(problem: ProblemKey, candidate: CandidateKey) -> Decision:
    return Decision(
        problem, _ENVIRONMENT, _PROTOCOL, candidate, 20.0, 12.5, 1.4, 1.36, 1.44, 0.004, "new",
        {f"acme.kernel{number}": 1.0 + number / 10 for number in range(1, 8)},
        default_ratio=Interval(1.4, 1.36, 1.44), ties=("acme.kernel3 BLOCK=8",),
    )  # fmt: skip


def _finals(candidates: list[CandidateKey]) -> list[Final]:
    entrants = [*candidates[1:8], None]
    found = []
    for place in range(FINALS):
        candidate = entrants[place % 8]
        role: Role = "floor" if candidate is None else "candidate"
        found.append(Final(candidate, role, place // 64, place // 8, place % 8, 20.0 + place / 7))
    return found


def main() -> None:
    """Make the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=100_000)
    options = parser.parse_args()
    fill(options.file, options.trials)


if __name__ == "__main__":
    main()
