"""Run the tests of this folder in rounds: what times or counts alone, what fills the memory of a GPU on few workers.

``python -m tests.gpu.rounds [ROUND ...] [--seconds S] [--reports FILE]``: each round is a run of pytest, which leaves
out what has passed by FILE, so that a second call goes on where a limit cut the first off. At the end a table, and the
tests that failed; the exit code is 1 if one failed or was not reached.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .reports import VARIABLE, Outcome, outcomes

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_STOPS_S = 20.0
"""Seconds that pytest has to end after Ctrl-C, before it is killed."""


class Round(NamedTuple):
    """Files of this folder, without ``test_`` and suffix, that run together on so many workers; 0: one process."""

    files: tuple[str, ...]
    workers: int


_TIMED = ("timed_launches", "mutates", "remembered_memory", "few_operations", "measurement")
_MODELS = ("applied_models", "applied_logits", "model_peers", "quantized_checkpoints", "latent_attention")
_NAMED = {
    "adversarial": Round(("adversarial",), 0),
    "isolation": Round(("isolation", "faults", "sandbox"), 0),
    "timed": Round(_TIMED, 0),
    "models": Round((*_MODELS, "parallel_models", "kernelized_models"), 3),
    "triton": Round(("triton",), 12),
}


def rounds() -> dict[str, Round]:
    """Every test file of the folder, each in one round; ``rest`` has those that stand nowhere else."""
    files = sorted(file.stem.removeprefix("test_") for file in _HERE.glob("test_*.py"))
    named = {name for one in _NAMED.values() for name in one.files}
    return {**_NAMED, "rest": Round(tuple(name for name in files if name not in named), 10)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds that the command line names; returns the exit code."""
    every = rounds()
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.rounds", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help=f"of {', '.join(every)}; all by default")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many, with what there is")
    parser.add_argument("--reports", type=Path, default=Path("gpu_reports.jsonl"), help="lines of JSON, one a test")
    told = parser.parse_args(arguments)
    if unknown := [name for name in told.rounds if name not in every]:
        parser.error(f"no round {', '.join(unknown)}: there are {', '.join(every)}")
    until = time.monotonic() + told.seconds
    reports = told.reports.resolve()
    lines = [_row("round", "files", "workers", "passed", "skipped", "failed", "seconds", "ended")]
    whole = True
    for name in told.rounds or every:
        before, began = outcomes(reports), time.monotonic()
        ended = _run(every[name], reports, until)
        whole = whole and ended
        found = {test: one for test, one in outcomes(reports).items() if _is_of(every[name], test)}
        counts = Counter(one.outcome for one in found.values())
        counted = [counts[outcome] for outcome in ("passed", "skipped", "failed")]
        seconds = round(time.monotonic() - began)
        again = len(found) - len(found.keys() - before.keys())
        how = ("yes" if ended else "no") + (f", {again} of an earlier call" if again else "")
        lines.append(_row(name, len(every[name].files), every[name].workers, *counted, seconds, how))
    failed = {test: one for test, one in outcomes(reports).items() if one.outcome == "failed"}
    sys.stdout.write("\n".join([*map(_told, failed.items()), *lines, ""]))
    return int(bool(failed) or not whole)


def _run(one: Round, reports: Path, until: float) -> bool:
    """Run a round's files, at the longest until then; True if pytest came to its end."""
    left = until - time.monotonic()
    if left <= 0:
        return False
    files = [str(_HERE.relative_to(_ROOT) / f"test_{name}.py") for name in one.files]
    options = ["-q", "-p", "tests.gpu.reports", "-p", "no:benchmark", "-p", "no:cacheprovider", "--tb=short"]
    workers = ["-n", str(one.workers), "--dist", "worksteal"]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *workers, *files],
        cwd=_ROOT,
        env=os.environ | {VARIABLE: str(reports)},
        start_new_session=True,
    )
    try:
        return child.wait(left if left < float("inf") else None) in {0, 1, 5}
    except subprocess.TimeoutExpired:
        return False
    finally:
        _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a run of pytest and what it has started."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_STOPS_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _is_of(one: Round, test: str) -> bool:
    return Path(test.partition("::")[0]).stem.removeprefix("test_") in one.files


def _row(*cells: object) -> str:
    return "  ".join(f"{cell!s:>11}" for cell in cells)


def _told(failed: tuple[str, Outcome]) -> str:
    test, one = failed
    reason = next((line for line in reversed(one.why.splitlines()) if line.startswith("E ")), one.why[-200:])
    return f"FAILED {test}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
