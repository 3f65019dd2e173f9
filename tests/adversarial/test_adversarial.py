"""Whoever is fast because it is wrong does not win: each cheat is refused with its status and a reason."""

from __future__ import annotations

import pytest

from registry.problem import Problem

from .cheating_run import CheatingRun, each_of, left_out

# short enough that torch stays on one thread, and a multiple of nothing but two
PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "tanh"}),
    Problem("rms_norm", {"rows": 4, "cols": 4096, "dtype": "bfloat16"}),
)

RIGHT = ("honest", "honest_function", "declared", "norm")
REFUSED = {
    "stale_memory": ("wrong_result", ""),
    # what was free by then may also have gone back to the operating system
    "freed_memory": ("wrong_result|crash", ""),
    "three_buffers": ("wrong_result", ""),
    "buffer": ("wrong_result", "the same memory: the second overwrites"),
    "alias": ("wrong_result", "shares memory with an argument"),
    "beside": ("wrong_result", "writes outside its output"),
    "last_output": ("wrong_result", "expected"),
    # in some of its samples, or afterwards
    "pointer": ("wrong_result", ""),
    "peek": ("wrong_result", ""),
    "skips": ("wrong_result", ""),
    "first_calls": ("wrong_result", ""),
    # before it is timed or later: as fast as the machine is
    "waits": ("wrong_result", "expected|a sample left a wrong output"),
    "thread": ("wrong_result", ""),
    "zeroes": ("wrong_result", "changes its input x"),
    "later_copies": ("wrong_result", "changes its input x in some of the timed copies"),
    "bfloat16": ("wrong_result", "times what is allowed"),
    "tf32": ("wrong_result", "times what is allowed"),
    "last_block": ("wrong_result", "is 0, expected"),
    "unwritten": ("wrong_result", "y[0] is nan"),
    "one_nan": ("wrong_result", "y[6667] is nan"),
    "dtype": ("wrong_result", "y is float64, expected float32"),
    "strides": ("wrong_result", "has strides (2,), expected (1,)"),
    "odd": ("wrong_result", "right here, but not for square(n="),
    "strided": ("wrong_result", "with strided inputs"),
    "unaligned": ("wrong_result", "with unaligned inputs"),
    "raises_odd": ("error", "what it cannot run, unsupported() has to say"),
    "clock": ("error", "time.perf_counter_ns by"),
    "events": ("error", "elapsed_time by"),
    "comparison": ("error", "replaces what measures or verifies it"),
    "statistics": ("error", "statistics.median by"),
    "bounds": ("error", "registry.correctness.bounds.Bounds.holding by"),
    "settings": ("error", "it sets float32 matmul precision"),
    "undeclared": ("nondeterministic", "does not say so"),
    "accumulates": ("wrong_result", "times what is allowed"),
}
REPEATED = (
    "freed_memory", "three_buffers", "last_output", "pointer", "skips", "tf32", "last_block", "one_nan",
    "strides", "strided", "events", "comparison", "statistics", "bounds",
)  # fmt: skip
"""Those that do what another does, in another way."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    folder, without = tmp_path_factory.mktemp("adversarial"), left_out(request, REPEATED)
    return CheatingRun("cheats.py", "cheat", PROBLEMS, folder, "patched_clock.py", left_out=without)


@pytest.mark.parametrize("cheat", each_of(REFUSED, REPEATED))
def test_each_cheat_is_refused_with_its_status_and_the_reason(run: CheatingRun, cheat: str) -> None:
    status, words = REFUSED[cheat]
    trial = run.trials[cheat]
    assert trial.status in status.split("|"), trial.message
    assert trial.message
    assert any(each in trial.message for each in words.split("|"))


def test_a_checksum_is_refused_unless_it_was_too_slow_to_be_timed_to_the_end(run: CheatingRun) -> None:
    trial = run.trials["checksum"]
    assert "checksum" not in run.winners.values()
    if run.was_given_up("checksum"):
        assert trial.status == "ok", trial.message
    else:
        assert trial.status == "wrong_result", trial.message
        assert trial.message


def test_a_clock_that_is_patched_at_import_is_put_back_and_held_against_its_plugin(run: CheatingRun) -> None:
    trial = run.trials["clock_at_import"]
    assert trial.status == "error"
    assert "time.perf_counter_ns" in trial.message


@pytest.mark.parametrize("honest", RIGHT)
def test_what_is_right_is_not_refused(run: CheatingRun, honest: str) -> None:
    trial = run.trials[honest]
    assert trial.status == "ok", trial.message


def test_only_what_is_right_wins(run: CheatingRun) -> None:
    assert run.winners["square"] in {"honest", "honest_function"}
    assert (run.winners["gelu"], run.winners["rms_norm"]) == ("declared", "norm")


def test_every_cheat_was_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT, "checksum", "clock_at_import"}
