"""The displays of a run: what a person sees, what a pipe gets, what a machine reads."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from registry.cli.display import progress, text
from registry.cli.display.changes import run_lines
from registry.cli.display.progress import JsonLines, LiveDisplay, PlainLines, say_results
from registry.cli.display.winners_table import print_results, speedup_over
from registry.problem import Problem
from registry.tuner.events import (
    DeviceUse,
    Event,
    FinalsStarted,
    Incumbent,
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
DEFAULT = Incumbent("triton.row", {"num_warps": 4}, stored=False)
FASTER = replace(RESULT, incumbent=DEFAULT, ratio=1.4, low=1.36, high=1.44, noise=0.017)
SAME = replace(
    RESULT,
    verdict="tie",
    incumbent=Incumbent("triton.online", {"BLOCK": 8192, "num_warps": 16}, stored=True),
    ratio=1.0,
    low=0.99,
    high=1.01,
    noise=0.02,
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


def test_a_reason_for_skipping_is_told_once_and_counted_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    others = [replace(LARGE, dims={**LARGE.dims, "rows": rows}) for rows in (1, 2)]
    skipped = [ProblemSkipped(one, "needs 99 GiB") for one in (LARGE, *others)]
    said: list[str] = []
    lines, json_lines = PlainLines(said.append), JsonLines()
    for event in (*skipped, ProblemSkipped(PROBLEM, "no inputs")):
        lines(event)
        json_lines(event)
    assert [line.partition("skipped: ")[2] for line in said] == ["needs 99 GiB", "no inputs"]
    assert capsys.readouterr().out.count("problem_skipped") == 4
    lines.conclude([])
    assert capsys.readouterr().out == "3 problems of softmax skipped: needs 99 GiB\n"


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


@pytest.mark.parametrize("columns", ["", "40"])
def test_json_lines_are_one_object_a_line_that_names_its_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
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
    for part in (
        "12/40",
        "650",
        "0.90",
        "1 min 01 s",
        "triton.online BLOCK=8192",
        "problems decided",
        "1/1",
        "1 trial",
    ):
        assert part in shown


def test_the_live_display_counts_what_failed() -> None:
    screen = io.StringIO()
    with LiveDisplay(Console(file=screen, force_terminal=True, width=120, color_system=None)) as display:
        display(EVENTS[0])
        for status in ("ok", "crash", "wrong_result", "crash"):
            display(replace(TRIAL, status=status))
        display._live.refresh()
    assert "4 trials, 2 crash, 1 wrong_result" in screen.getvalue()


def test_the_winners_table_has_a_line_a_problem_and_never_wraps_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_results([RESULT, FAILED])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["problem", "winner", "config"]
    assert "triton.online" in first
    assert first.split()[-5:] == ["612.3", "0.91", "2.50", "3.25", "new"]
    assert "none is right" in second
    assert "3 timeout" in second


def test_without_a_winner_the_real_reason_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    why = "undecided: its finals were disturbed: 12 µs for what took 5 µs in the search"
    undecided = Result(PROBLEM, "", {}, None, None, {}, "none", Counter(ok=3), reason=why)
    print_results([undecided])
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert why in line
    assert "3 ok" in line
    assert "none is right" not in line
    lines: list[str] = []
    display = PlainLines(lines.append)
    display(ProblemDecided(undecided))
    display(ProblemDecided(FAILED))
    assert why in lines[0]
    assert "right" not in lines[0]
    assert "none is right (3 timeout)" in lines[1]


def test_a_new_winner_says_which_stored_one_was_out(capsys: pytest.CaptureFixture[str]) -> None:
    why = "the stored winner my.fast was out: wrong_result"
    told = replace(RESULT, reason=why)
    print_results([told])
    assert f"new ({why})" in capsys.readouterr().out
    say_results([told])
    assert json.loads(capsys.readouterr().out)["results"][0]["reason"] == why
    lines: list[str] = []
    PlainLines(lines.append)(ProblemDecided(told))
    assert f"new: {why}" in lines[0]


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


def test_what_changed_is_told_in_the_line_of_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([FASTER, SAME, RESULT, FAILED])
    header, new, tied, known, failed, _, summary = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "incumbent"
    for part in ("triton.row num_warps=4 (default)", "triton.online", "1.40 (1.36 to 1.44)", "1.7%", "new"):
        assert part in new
    for part in ("triton.online", "BLOCK=8192 num_warps=16  ", "is the winner", "1.00 (0.99 to 1.01)", "2.0%", "tie"):
        assert part in tied
    assert "(default)" not in tied
    assert known.endswith("new"), "it had no finals, and no incumbent"
    assert failed.endswith("none")
    assert summary == "1 new, 1 tied; 1 of 2 incumbents beaten, 1.40 times as fast"


def test_nothing_is_told_of_incumbents_where_there_were_no_finals(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([RESULT, FAILED])
    told = capsys.readouterr().out
    assert "incumbent" not in told
    assert "A/A" not in told


def test_a_decision_is_told_with_its_interval_and_a_machine_gets_the_incumbent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    PlainLines(lines.append)(ProblemDecided(FASTER))
    assert "0.91 of floor, incumbent / winner 1.40 (1.36 to 1.44), new (38 ok, 2 wrong_result)" in lines[0]
    JsonLines()(ProblemDecided(FASTER))
    told = json.loads(capsys.readouterr().out)["result"]
    assert told["incumbent"] == {"implementation": "triton.row", "config": {"num_warps": 4}, "stored": False}
    assert (told["ratio"], told["low"], told["high"], told["noise"]) == (1.4, 1.36, 1.44, 0.017)


def test_totals_tell_how_busy_the_device_was_and_torch_compile_apart() -> None:
    ended = RunEnded(59.0, 41.0, 3183, False, 0, 0.72, 0.55, {"triton": 227.0, "inductor": 62.0}, warming_up_s=12.0)
    assert list(run_lines(ended, 52, 1)) == [
        "52 problems, 1 skipped, 3183 trials in 59 s; the worker had a job for 41 s",
        "from 12 s on it had one 72% of the time, and a kernel ran 55%",
        "compiled meanwhile, summed over the processes: triton 3 min 47 s",
        "torch.compile's own compilation: 1 min 02 s",
    ]
    (line,) = run_lines(RunEnded(2.0, 1.0, 1, False, 0), 1, 0)
    assert line == "1 problem, 1 trial in 2.0 s; the worker had a job for 1.0 s"
    told = list(run_lines(RunEnded(2.0, 1.0, 1, True, 3), 1, 0))
    assert "3 problems undecided" in told[-1]


def test_a_run_without_a_database_that_lasts_says_that_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = RunEnded(2.0, 1.0, 1, True, 3)
    kept, lost = ([*run_lines(stopped, 1, 0, keeps=keeps)][-1] for keeps in (True, False))
    assert kept == (
        "interrupted: every finished trial is kept, 3 problems undecided; the same command goes on from here"
    )
    assert lost == (
        "interrupted: 3 problems undecided; no trial is kept, and the same command begins anew (--db FILE keeps them)"
    )
    (late,) = [*run_lines(replace(stopped, interrupted=False, timed_out=True), 1, 0, keeps=False)][1:]
    assert "stored" not in late
    assert "no trial is kept" in late
    display = PlainLines(print)
    display.keeps = False
    for event in (EVENTS[0], stopped):
        display(event)
    display.conclude(())
    shown = capsys.readouterr().out
    assert "results are not kept" in shown
    assert "no trial is kept" in shown
    assert "tuning.db" not in shown


def test_what_nobody_can_believe_is_told_as_noise(capsys: pytest.CaptureFixture[str]) -> None:
    wild = replace(FASTER, low=0.8, high=282.0, ratio=29.7, floor_us=900.0, median_us=2.0)
    print_results([wild])
    shown = capsys.readouterr().out
    assert " noise  " in shown, "a part of the floor that no kernel reaches"
    assert "noise (0.80 to 282.00)" in shown
    assert not any(ratio in shown for ratio in ("29.7", "2.50", "3.25")), "the others are of the same disturbed rounds"
    assert "1 of 1 incumbent beaten, by how much is noise" in shown
    print_results([FASTER, wild])
    assert "times as fast (1 of them noise)" in capsys.readouterr().out


def test_a_ratio_of_which_its_own_rounds_tell_nothing_is_noise(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([replace(FASTER, noisy=frozenset({"torch.compile"}))])
    shown = capsys.readouterr().out
    assert "2.50" in shown
    assert "3.25" not in shown
    print_results([replace(FASTER, implementation="torch.native", low=0.8, high=282.0)])
    assert " 1.00 " in capsys.readouterr().out, "an implementation is as fast as itself"


TWO = (DeviceUse("cuda:0", "aa", 1600, 21.0, 0.70, 0.54), DeviceUse("cuda:1", "bb", 1583, 20.0, None, None))


def test_of_several_devices_each_is_told_for_itself() -> None:
    ended = RunEnded(31.0, 41.0, 3183, False, 0, devices=TWO)
    assert list(run_lines(ended, 52, 0)) == [
        "52 problems, 3183 trials in 31 s; 2 workers had a job for 41 s",
        "  cuda:0: 1600 trials, a job for 21 s, 70% of the time, a kernel ran 54%",
        "  cuda:1: 1583 trials, a job for 20 s",
    ]
    assert len(list(run_lines(replace(ended, devices=TWO[:1]), 52, 0))) == 1


def test_a_search_is_shown_with_its_device_where_there_are_several() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    display = LiveDisplay(console)
    display(replace(TRIAL, device="cuda:0"))
    console.print(display._render())
    assert "cuda:0" not in console.export_text()
    display(replace(TRIAL, device="cuda:1", problem=LARGE))
    display(replace(TRIAL, device=""))  # what does not compile is tried nowhere
    console.print(display._render())
    rows = [line.split()[:2] for line in console.export_text().splitlines()]
    assert rows[:3] == [["on", "problem"], ["cuda:1", "softmax"], ["cuda:0", "softmax"]]


def test_results_of_several_kinds_of_hardware_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    print_results([replace(RESULT, hardware="NVIDIA H200"), replace(RESULT, hardware="NVIDIA H200")])
    assert "H200" not in capsys.readouterr().out
    print_results([replace(RESULT, hardware=name) for name in ("NVIDIA H200", "NVIDIA L4")])
    shown = capsys.readouterr().out
    assert (shown.count("NVIDIA H200"), shown.count("NVIDIA L4")) == (1, 1)


def test_failures_that_differ_in_numbers_are_one_line_with_the_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainLines(lambda _: None)
    for rows in (64, 128, 256):
        for warps in (4, 8):
            problem = Problem("softmax", {"rows": rows, "cols": 8, "dtype": "float32"})
            message = f"mine.one: the run for rows={rows} is wrong: y[{rows - 1}] is -{rows / 7}"
            display(replace(TRIAL, problem=problem, implementation="mine.one", config={"num_warps": warps},
                            status="wrong_result", message=message))  # fmt: skip
    display.conclude(())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert line.startswith("failed mine.one: wrong_result: the run for rows=64 is wrong: y[63]")
    assert line.endswith("(3 problems, 2 configs)")
