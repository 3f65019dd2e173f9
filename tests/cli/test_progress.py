"""The displays of a run: what a person sees, what a pipe gets, what a machine reads."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from rich.console import Console

from registry.cli import progress, text
from registry.cli.closing import print_results, speedup_over
from registry.cli.progress import JsonLines, LiveDisplay, PlainLines, say_results
from registry.problem import Problem
from registry.tuner.events import (
    Event,
    FinalsStarted,
    Note,
    ProblemDecided,
    ProblemSkipped,
    ProblemStarted,
    Result,
    RunEnded,
    RunStarted,
    TrialDone,
)

PROBLEM = Problem("softmax", {"rows": 4096, "cols": 128256, "dtype": "bfloat16"})
LARGE = Problem("softmax", {"rows": 2**40, "cols": 8, "dtype": "float32"})
RESULT = Result(
    PROBLEM,
    "triton.online",
    {"BLOCK": 8192, "num_warps": 16},
    median_us=612.34,
    floor_us=560.0,
    speedup={"torch.native": 2.5, "torch.compile": 3.25},
    verdict="new",
    statuses=Counter(ok=38, wrong_result=2),
)
FAILED = Result(LARGE, "", {}, None, None, {}, "none", Counter(timeout=3))
TRIAL = TrialDone(PROBLEM, "triton.row", {"num_warps": 4}, "ok", "", 700.0, 12, 40, 650.0, 585.0, 61.0)
EVENTS: list[Event] = [
    RunStarted("cuda:0 (NVIDIA H200)", (PROBLEM, LARGE), (LARGE,), "sqlite:////tmp/tuning.db"),
    ProblemSkipped(LARGE, "needs 99 GiB, the device has 80"),
    ProblemStarted(PROBLEM, 40, 560.0),
    TRIAL,
    Note("worker replaced"),
    FinalsStarted(1, 3),
    ProblemDecided(RESULT),
    RunEnded(123.0, 45.0, 40, False, 0),
]


def test_plain_lines_tell_the_story_without_colours_or_redrawing() -> None:
    lines: list[str] = []
    display = PlainLines(lines.append)
    for event in EVENTS:
        display(event)
    story = "\n".join(lines)
    assert "tuning 2 problems on cuda:0 (NVIDIA H200), 1 of them tuned before" in story
    assert "softmax rows=4096 cols=128256 dtype=bfloat16: triton.online BLOCK=8192 num_warps=16: 612.3 µs" in story
    assert "0.91 of floor, new (38 ok, 2 wrong_result)" in story
    assert "skipped: needs 99 GiB" in story
    assert "\x1b" not in story
    assert display.ended == EVENTS[-1]
    assert display.skipped == [EVENTS[1]]


def test_plain_lines_tell_of_trials_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    display = PlainLines(lines.append)
    for _ in range(50):
        display(TRIAL)
    assert lines == []
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    display(TRIAL)
    assert lines == [
        "softmax rows=4096 cols=128256 dtype=bfloat16: 12/40 tried, best 650 µs, 0.90 of floor, 1 min 01 s left"
    ]


def test_json_lines_are_one_object_a_line_that_names_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonLines()
    for event in EVENTS:
        display(event)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in told] == [
        "run_started",
        "problem_skipped",
        "problem_started",
        "trial_done",
        "note",
        "finals_started",
        "problem_decided",
        "run_ended",
    ]
    assert told[3]["problem"] == {"op": "softmax", "dims": {"rows": 4096, "cols": 128256, "dtype": "bfloat16"}}
    assert told[6]["result"]["statuses"] == {"ok": 38, "wrong_result": 2}
    assert told[6]["result"]["fraction_of_floor"] == pytest.approx(560.0 / 612.34)
    assert told[0]["known"][0]["dims"]["rows"] == 2**40
    say_results([RESULT, FAILED])
    (line,) = capsys.readouterr().out.splitlines()
    assert [one["verdict"] for one in json.loads(line)["results"]] == ["new", "none"]


def test_the_live_display_shows_the_search_and_leaves_the_decisions() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None, highlight=False)
    with LiveDisplay(console) as display:
        for event in EVENTS[:5]:
            display(event)
        display._live.refresh()
        for event in EVENTS[5:]:
            display(event)
    shown = screen.getvalue()
    for part in ("12/40", "650", "0.90", "1 min 01 s", "triton.online BLOCK=8192", "problems decided", "1/1"):
        assert part in shown


def test_the_closing_table_has_a_line_a_problem_and_never_wraps_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([RESULT, FAILED])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["problem", "winner", "config"]
    assert "triton.online" in first
    assert first.split()[-5:] == ["612.3", "0.91", "2.50", "3.25", "new"]
    assert "none is right" in second
    assert "3 timeout" in second


def test_the_winner_is_as_fast_as_itself() -> None:
    assert speedup_over(RESULT, "triton.online") == 1.0
    assert speedup_over(RESULT, "torch.native") == 2.5
    assert speedup_over(RESULT, "cuda.row") is None


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, "-"), (0.44, "0.4 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3660, "1 h 01 min")]
)
def test_durations_read_well(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(("value", "shown"), [(None, "-"), (0.123456, "0.1235"), (12.3456, "12.35"), (1234.5, "1234")])
def test_times_have_four_digits(value: float | None, shown: str) -> None:
    assert text.microseconds(value) == shown
