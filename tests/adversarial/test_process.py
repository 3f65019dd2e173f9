"""Whoever changes the process in which all are verified and timed is refused, and the change is undone."""

from __future__ import annotations

import pytest

from registry.problem import Problem
from registry.tuner.measure.series import PROMISING

from .cheating_run import CheatingRun, each_of, left_out

PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("gelu", {"n": 20_002, "dtype": "float32", "approximate": "none"}),
)
RIGHT = ("honest", "gelu", "function", "executor", "waiting_child")
REFUSED = {
    "dispatch_mode": "it sets torch's modes to (0, 1)",
    "function_mode": "it sets torch's modes to (1, 0)",
    "operator": "it sets torch's operators to",
    "autograd_operator": "it sets torch's operators to",
    "native_operator": "it sets torch's operators to",
    "fallback": "it sets torch's operators to",
    "puts_back": "registry.correctness.bounds.Bounds.holding by",
    "code": "registry.correctness.bounds.holding by",
    "constants": "registry.tuner.verify.between_samples._MOST",
    "tolerance": "square.tolerance.rtol;",
    "no_settings": "registry.tuner.workers.settings.SETTINGS;",
    "reference": "square.reference by",
    "functional": "torch.nn.functional.gelu by",
    "secrets": "secrets.randbits by",
    "rival": "Honest.write by",
    "profile": "it sets Python's profile function to",
    "timer": "it sets timers to (False, True, False)",
    "cores": "it sets cores to run on to",
    "onednn": "it sets torch's use of oneDNN to False",
    "subnormals": "it sets subnormal numbers to False",
    "thresholds": "it sets thresholds of garbage collection to (1, ",
    "busy_thread": "it leaves a thread running: cheats_in_the_process.py:burn",
    "child": "it leaves a process running: ",
    "variables": "it sets environment variables to another TORCHINDUCTOR_MAX_FUSION_SIZE, where it was no",
    "depth": "it sets depth of Python's calls to",
    "numpy": "it sets NumPy's errors to",
    "warnings": "it sets warnings that are errors to",
    "autocast": "it sets torch's autocast to",
    "inference": "it sets torch's inference mode to True",
    "default_device": "it sets torch's default device to",
}

LOOKS = ("frames", "first_inputs")
"""They look at who calls them, or at whether they know the inputs, and leave out what is not judged."""
REPEATED = (
    "function_mode", "autograd_operator", "native_operator", "fallback", "functional", "timer", "inference",
    "default_device", "numpy", "no_settings", "onednn", "thresholds",
)  # fmt: skip
"""Those that do what another does, in another way."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    folder, without = tmp_path_factory.mktemp("process"), left_out(request, REPEATED)
    return CheatingRun("cheats_in_the_process.py", "process", PROBLEMS, folder, left_out=without)


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_changes_the_process_is_refused(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    assert trial.status == "error", trial.message
    assert REFUSED[name] in trial.message


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_knows_which_samples_are_judged_is_refused(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    if trial.status == "ok":
        # a machine that was busy made it so slow that it could not win: then nobody asks
        fastest = min(other.median_us for other in run.trials.values() if other.median_us is not None)
        assert trial.median_us is not None
        assert trial.median_us > PROMISING * fastest
    else:
        assert (trial.status, "a sample left a wrong output" in trial.message) == ("wrong_result", True), trial.message


def test_the_honest_are_accepted_and_win(run: CheatingRun) -> None:
    assert [run.trials[name].message for name in RIGHT if run.trials[name].status != "ok"] == []
    # a busy machine may disturb finals, which then decide nothing
    won = [name for name, result in zip(run.winners.values(), run.results, strict=True) if not result.reason]
    assert set(won) <= set(RIGHT), run.winners


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *LOOKS, *RIGHT}
