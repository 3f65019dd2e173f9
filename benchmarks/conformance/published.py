"""Runs of other projects' test files in a process of their own, and the counts of their outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .outcomes import Counts, Outcome

Noted = Mapping[str, Sequence[str]]
"""(outcome, reason) by test, as ``pytest_outcomes`` writes it."""

_ROOT = Path(__file__).resolve().parents[2]
_OUTCOMES = {
    "passed": Outcome.PASSED,
    "clear error": Outcome.CLEAR_ERROR,
    "failed": Outcome.WRONG,
    "not collected": Outcome.UNCLEAR,
}

EXPLAINED: Mapping[str, str] = {
    "test_sdpa_can_dispatch_non_composite_models": "the configuration names the attention that runs, the registry's",
    "test_tied_weights_keys": "query, key and value, and gate and up, are parts of one tensor, called tied here",
}
"""Name of a test of transformers -> why it fails with ``apply``, and is meant to."""


def run_tests(folder: Path, files: Sequence[str], plugins: Sequence[str], variables: Mapping[str, str]) -> Noted:
    """What became of the tests of ``files`` under pytest, in ``folder``, with ``plugins`` of benchmarks.conformance."""
    with tempfile.TemporaryDirectory() as place:
        outcomes = Path(place) / "outcomes.json"
        done = _pytest(
            folder, files, ["pytest_outcomes", *plugins], {**variables, "CONFORMANCE_OUTCOMES": str(outcomes)}
        )
        if not outcomes.is_file():
            raise SystemExit(f"pytest in {folder} wrote no outcomes:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        noted: Noted = json.loads(outcomes.read_text(encoding="utf-8"))
    return noted


def run_files(
    folder: Path,
    files: Sequence[str],
    options: Sequence[str],
    plugins: Sequence[str],
    variables: Mapping[str, str],
    jobs: int,
) -> Noted:
    """What became of the tests of ``files``, dealt to ``jobs`` processes one test after the other."""
    if jobs == 1:
        return run_tests(folder, [*options, *files], plugins, variables)
    tests = _tests_in(folder, files, options, plugins, variables)
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:
        lists = []
        for number in range(min(jobs, len(tests))):
            lists.append(Path(place) / f"{number}.txt")
            lists[-1].write_text("\n".join(tests[number::jobs]), encoding="utf-8")
        each = pool.map(lambda some: run_tests(folder, [*options, f"@{some}"], plugins, variables), lists)
        return {test: found for noted in each for test, found in noted.items()}


def _tests_in(
    folder: Path, files: Sequence[str], options: Sequence[str], plugins: Sequence[str], variables: Mapping[str, str]
) -> list[str]:
    """The tests that pytest collects from ``files``; a file without any is named itself, so that a run tells why."""
    told = _pytest(folder, ["--collect-only", *options, *files], plugins, variables).stdout
    tests = [line for line in told.splitlines() if "::" in line and line.partition("::")[0] in files]
    return [*tests, *(file for file in files if not any(test.startswith(f"{file}::") for test in tests))]


def _pytest(
    folder: Path, given: Sequence[str], plugins: Sequence[str], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "plugins"), os.environ.get("PYTHONPATH", "")])
    loaded = [part for each in plugins for part in ("-p", f"benchmarks.conformance.{each}")]
    quiet = ["-q", "--tb=no", "-W", "ignore", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *loaded, *given],
        cwd=folder, env={**os.environ, **variables, "PYTHONPATH": paths}, check=False, capture_output=True, text=True,
    )  # fmt: skip


def counts_by_file(noted: Noted, explained: Mapping[str, str] | None = None) -> dict[str, Counts]:
    """The counts of each test file, by its name without ``test_``.

    explained  as ``EXPLAINED``, by ``file::test``, the file without ``test_``
    """
    groups: dict[str, Counts] = {}
    for test, (outcome, reason) in noted.items():
        file, _, name = test.partition("::")
        stem, short = Path(file).stem.removeprefix("test_"), name.partition("[")[0]
        counts = groups.setdefault(stem, Counts())
        why = (explained or {}).get(f"{stem}::{short}", "")
        if outcome == "failed" and why:
            counts.add(Outcome.EXPLAINED, f"{short}: {why}")
        else:
            told = f"{short}: {reason}" if reason and outcome != "skipped" else ""
            counts.add(_OUTCOMES.get(outcome, Outcome.NOT_RUN), told)
    return dict(sorted(groups.items()))


def counts_by_model(plain: Noted, applied: Noted) -> dict[str, Counts]:
    """The counts of each model's tests with ``apply``; one that fails or is skipped without it counts as such."""
    groups: dict[str, Counts] = {}
    for test, (before, _) in plain.items():
        kind, _, rest = test.partition("::")[2].partition("__")
        counts, name = groups.setdefault(kind, Counts()), rest.rpartition("::")[2]
        outcome, reason = applied.get(test, ("failed", "not run with apply"))
        why = next((why for start, why in EXPLAINED.items() if name.startswith(start)), "")
        if before == "skipped":
            counts.add(Outcome.NOT_RUN)
        elif before != "passed":
            counts.add(Outcome.BOTH_REFUSE, f"{name}: fails without apply, too")
        elif outcome == "passed":
            counts.add(Outcome.PASSED)
        elif why:
            counts.add(Outcome.EXPLAINED, f"{name}: {why}")
        else:
            counts.add(Outcome.WRONG, f"{name}: {reason}")
    return groups
