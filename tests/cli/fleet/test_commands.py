"""``registry fleet``: queues a shapes file, and says what is queued, also as JSON; bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Command


@pytest.fixture
def planned(command: Command, shapes: Path) -> Command:
    told = command("registry", "fleet", "plan", "--shapes", shapes, "--gpus", "NVIDIA H200,NVIDIA H100", "--trials", 4)
    assert told.code == 0, told.err
    assert "2 jobs with 2 problems queued in" in told.out
    assert "for NVIDIA H200 and NVIDIA H100" in told.out
    return command


def test_a_plan_may_be_repeated_and_its_jobs_are_shown(planned: Command, shapes: Path) -> None:
    again = planned("registry", "fleet", "plan", "--shapes", shapes, "--gpus", "NVIDIA H200", "--json")
    found = json.loads(again.out)
    assert (found["jobs"], found["problems"], found["already"]) == (0, 0, 1)
    told = planned("registry", "fleet", "status")
    assert (told.code, told.out.splitlines()[1].split()[:3]) == (0, ["NVIDIA", "H100", "1"])
    status = json.loads(planned("registry", "fleet", "status", "--json").out)
    assert [(one["device"], one["queued"]) for one in status["jobs"]] == [("NVIDIA H100", 1), ("NVIDIA H200", 1)]


def test_a_models_problems_are_queued(command: Command) -> None:
    told = command(
        "registry", "fleet", "plan", "--gpus", "NVIDIA H200", "--model", "llama-3.1-8b", "--batch", 1, "--context", 64,
        "--quantize", "nf4", "--lm-head", "--op", "gemm_nf4", "--json",
    )  # fmt: skip
    assert told.code == 0, told.err
    # four products of a layer for a prompt and for a token, and the head's for a token
    assert json.loads(told.out)["problems"] == 9


def test_a_worker_without_jobs_for_its_device_leaves(planned: Command) -> None:
    told = planned("registry", "fleet", "work", "--device", "cpu")
    assert (told.code, told.out.splitlines()[-1]) == (0, "left after 0 jobs")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("plan",), "no problems"),
        (("plan", "--shapes", "SHAPES", "--job-size", "0"), "problems of a job: 0"),
        (("plan", "--shapes", "SHAPES", "--implementations", "none.such"), "none.such"),
        (("work", "--lease", "0"), "--lease 0: expected more than 0"),
        (("work", "--device", "cuda:77"), "cuda:77"),
        (("status",), "there is no database"),
    ],
)
def test_bad_input_is_told(command: Command, shapes: Path, arguments: tuple[str, ...], fault: str) -> None:
    told = command("registry", "fleet", *[str(shapes) if each == "SHAPES" else each for each in arguments])
    assert told.code == 2
    assert fault in told.err
