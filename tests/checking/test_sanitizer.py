"""compute-sanitizer: where it is found, and what its exit codes and output mean."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from registry.checking import sanitizer

RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at square+0x90 in kernel.cu:6
=========     and Write access at square+0xb0 in kernel.cu:7 [1020 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NO_GPU = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
========= Error: Target application terminated before first instrumented API call
"""


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No search path and no toolkit has the program."""
    monkeypatch.setattr(sanitizer, "_PLACES", ("compute-sanitizer",))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("place", ["cu13/bin", "cuda_sanitizer_api/bin"])
def test_the_program_of_a_wheel_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    class Namespace:
        submodule_search_locations = (str(tmp_path / "other"), str(tmp_path / "nvidia"))

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Namespace if name == "nvidia" else None)
    assert sanitizer.sanitizer() is None
    program = tmp_path / "nvidia" / place / "compute-sanitizer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    assert sanitizer.sanitizer() is None  # it cannot be run
    program.chmod(0o755)
    assert sanitizer.sanitizer() == str(program)


@pytest.mark.usefixtures("nowhere")
def test_without_the_program_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = sanitizer.sanitized("memcheck", {})
    assert (found.verdict, found.reason) == (
        "skipped",
        "compute-sanitizer is not installed: pip install nvidia-cuda-sanitizer-api, or take the CUDA toolkit's",
    )


def test_errors_are_told_without_the_banner() -> None:
    found = sanitizer.finding("racecheck", 86, RACE)
    assert found.verdict == "failed"
    assert found.reason.startswith("Error: Race reported between Read access at square+0x90")
    assert "RACECHECK SUMMARY: 1 hazard" in found.reason


def test_a_clean_run_passes_and_a_refusal_is_no_pass() -> None:
    assert sanitizer.finding("memcheck", 0, "========= ERROR SUMMARY: 0 errors\n").verdict == "passed"
    refused = sanitizer.finding("memcheck", 0, "refused: written for float32\n")
    assert (refused.verdict, refused.reason) == ("skipped", "written for float32")


def test_a_sanitizer_that_cannot_run_says_so_and_accuses_nobody() -> None:
    found = sanitizer.finding("memcheck", 255, NO_GPU)
    assert found.verdict == "skipped"
    assert "could not run: exit code 255" in found.reason
    assert "terminated before first instrumented API call" in found.reason
