"""``tune --from-misses``: what programs called without a winner of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.dispatch.hit.counter import Counter
from registry.dispatch.recording.misses import Misses
from registry.problem import Problem

from ..conftest import Command


def test_missed_problems_are_listed_with_their_weight(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "misses.yaml"
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(path))
    noted = Misses()
    for n, times in ((4096, 3), (1 << 24, 2)):
        calls = Counter()
        for _ in range(times):
            calls.hit()
        noted.note(Problem("square", {"n": n, "dtype": "float32"}), calls)
    noted.save()
    told = command("tune", "--from-misses", "--device", "cpu", "--dry-run")
    assert (told.code, told.err) == (0, "")
    notes = [line for line in told.out.splitlines() if "missed time" in line]
    assert [("16777216" in line, "2 calls" in line) for line in notes] == [(True, True), (False, False)]
    listed = json.loads(command("tune", "--from-misses", "--device", "cpu", "--dry-run", "--json").out)
    assert {plan["dims"]["n"] for plan in listed} == {4096, 1 << 24}


def test_without_a_file_the_variable_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(tmp_path / "none.yaml"))
    told = command("tune", "--from-misses", "--device", "cpu", "--dry-run")
    assert told.code == 2
    assert "no missed calls were counted" in told.err
    assert "KERNEL_REGISTRY_MISSES=1" in told.err
