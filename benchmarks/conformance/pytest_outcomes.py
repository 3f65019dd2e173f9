"""A pytest plugin that writes the outcome of each test to the file that ``CONFORMANCE_OUTCOMES`` names, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import RegistryError

from .counted_calls import CallCounter

CLEAR = "clear error"
_MOST = 200
"""The most characters of a reason that are kept."""
WITHOUT_CALL = "no call"
_FOUND: dict[str, tuple[str, str]] = {}
_REASONS: dict[str, tuple[str, str]] = {}
_CALLED: set[str] = set()
_MADE = [0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note the reason of a failure, and whether the registry gave it."""
    if call.when == "call" and CallCounter.made > _MADE[0]:
        _CALLED.add(item.nodeid)
    _MADE[0] = CallCounter.made
    if call.excinfo is not None:
        fault = call.excinfo.value
        clear = CLEAR if isinstance(fault, RegistryError) else ""
        _REASONS.setdefault(item.nodeid, (clear, f"{type(fault).__name__}: {fault}".splitlines()[0][:_MOST]))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note (outcome, reason) of a test or a part of it: passed, skipped, failed, or a clear error."""
    if report.when == "call" or not report.passed:
        clear, reason = _REASONS.get(report.nodeid, ("", ""))
        outcome = (clear or "failed") if report.failed else report.outcome
        # parts of a test are told before it: the worst counts
        if _FOUND.get(report.nodeid, ("passed",))[0] == "passed":
            _FOUND[report.nodeid] = outcome, "" if report.passed else reason


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        _FOUND[report.nodeid] = "not collected", str(report.longrepr).splitlines()[-1]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was noted; with shims, a test that called none has run nothing of the registry."""
    plugins = (name for name, _ in session.config.pluginmanager.list_name_plugin())
    if CallCounter.made or any(name.endswith("_shim") for name in plugins):
        for name, (outcome, reason) in _FOUND.items():
            if name not in _CALLED and outcome in {"passed", "failed"}:
                _FOUND[name] = WITHOUT_CALL, reason
    Path(os.environ["CONFORMANCE_OUTCOMES"]).write_text(json.dumps(_FOUND), encoding="utf-8")
