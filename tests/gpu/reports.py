"""A plugin of pytest that writes each test's outcome to a file as it comes, and leaves out what passed by that file.

``pytest -p tests.gpu.reports`` with ``GPU_REPORTS=FILE``: lines of JSON. What a time limit cut off is run by a second
call, and what passed is not run again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

VARIABLE = "GPU_REPORTS"
_DONE = frozenset({"passed", "skipped"})


class Outcome(NamedTuple):
    """How a test ended: ``passed``, ``skipped`` or ``failed``, after how many seconds, and why it failed."""

    outcome: str
    seconds: float
    why: str = ""


def outcomes(file: Path) -> dict[str, Outcome]:
    """The latest outcome of each test that the file tells of, by the test's id."""
    if not file.exists():
        return {}
    lines = file.read_text("utf-8").splitlines()
    # the last line may have been cut off with its process
    told = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["test"]: Outcome(one["outcome"], one["seconds"], one["why"]) for one in told}


class LeavesOut:
    """Leaves out the tests that have passed, or were skipped, by the file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect them."""
        done = {test for test, told in outcomes(self.file).items() if told.outcome in _DONE}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]


class Writes(LeavesOut):
    """Writes the outcomes as well: the process that deals out the tests, or runs them all."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._parts: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test when its last part has ended; that of a worker that died has no part."""
        parts = self._parts.setdefault(report.nodeid, [])
        parts.append(report)
        if report.when not in {"setup", "call"}:
            del self._parts[report.nodeid]
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{_line(report.nodeid, parts)}\n")


def _line(test: str, parts: list[pytest.TestReport]) -> str:
    worst = next((part for outcome in ("failed", "skipped") for part in parts if part.outcome == outcome), parts[-1])
    seconds = round(sum(getattr(part, "duration", 0.0) for part in parts), 3)
    why = worst.longreprtext if worst.failed else ""
    return json.dumps({"test": test, "outcome": worst.outcome, "seconds": seconds, "why": why})


def pytest_configure(config: pytest.Config) -> None:
    """Register what leaves out and, unless this is a worker, what writes."""
    if file := os.environ.get(VARIABLE):
        kind = LeavesOut if hasattr(config, "workerinput") else Writes
        config.pluginmanager.register(kind(Path(file)), "gpu reports")
