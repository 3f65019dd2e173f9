"""The cheats of tests/adversarial on a GPU, and those that need one: none wins, each is refused for what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

HERE = Path(__file__).parent
ON_CPUS_TOO = HERE.parent / "adversarial"
PLUGINS = (
    ON_CPUS_TOO / "cheats.py",
    ON_CPUS_TOO / "cheats_that_return.py",
    ON_CPUS_TOO / "cheats_in_timing.py",
    ON_CPUS_TOO / "cheats_at_other_calls.py",
    HERE / "cheats_on_streams.py",
    HERE / "cheats_in_rounding.py",
)
VENDORS = ("cheat.", "return.", "timing.", "other.", "stream.", "rounding.")
PROBLEMS = (
    # a million elements, and a multiple of nothing but two
    Problem("square", {"n": 2**20 + 2, "dtype": "float32"}),
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "tanh"}),
    # those that remember inputs have it to themselves
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "none"}),
    Problem("rms_norm", {"rows": 4, "cols": 4096, "dtype": "bfloat16"}),
    # so many rows that two orders of addition never agree in all of them
    Problem("softmax", {"rows": 1024, "cols": 4096, "dtype": "float32"}),
)

RIGHT = {
    "square": (
        "cheat.honest",
        "cheat.honest_function",
        "return.honest",
        "timing.honest",
        "other.any_size",
        "stream.joined",
    ),
    "gelu": ("cheat.declared", "timing.gelu"),
    "rms_norm": ("cheat.norm", "return.norm"),
    "softmax": ("rounding.declared_atomics",),
}
REFUSED: dict[str, str | tuple[str, ...]] = {
    "cheat.stale_memory": "wrong_result",
    "cheat.three_buffers": "wrong_result",
    "cheat.buffer": "wrong_result",
    "cheat.alias": "wrong_result",
    "cheat.beside": "wrong_result",
    "cheat.last_output": "wrong_result",
    "cheat.pointer": "wrong_result",
    "cheat.peek": "wrong_result",
    "cheat.skips": "wrong_result",
    "cheat.first_calls": "wrong_result",
    "cheat.waits": "wrong_result",
    "cheat.zeroes": "wrong_result",
    "cheat.later_copies": "wrong_result",
    "cheat.bfloat16": "wrong_result",
    "cheat.tf32": "wrong_result",
    "cheat.last_block": "wrong_result",
    "cheat.unwritten": "wrong_result",
    "cheat.one_nan": "wrong_result",
    "cheat.dtype": "wrong_result",
    "cheat.strides": "wrong_result",
    "cheat.odd": "wrong_result",
    "cheat.strided": "wrong_result",
    "cheat.unaligned": "wrong_result",
    "cheat.raises_odd": "error",
    "cheat.clock": "error",
    "cheat.events": "error",
    "cheat.comparison": "error",
    "cheat.statistics": "error",
    "cheat.bounds": "error",
    "cheat.settings": "error",
    "cheat.undeclared": "nondeterministic",
    "cheat.accumulates": "wrong_result",
    "return.lazy": "wrong_result",
    "return.lazy_later": "wrong_result",
    # torch itself may refuse to copy it in inference mode
    "return.lazy_middle": ("wrong_result", "error"),
    "return.subclass": "wrong_result",
    "return.functional": "wrong_result",
    "return.negation": "wrong_result",
    "return.patched": "wrong_result",
    "return.sparse": "wrong_result",
    "return.input_at_first": "wrong_result",
    "return.view_at_first": "wrong_result",
    "return.prepared": "error",
    "return.prepared_beside": "error",
    "return.kept": ("wrong_result", "error"),
    "timing.peeks": "wrong_result",
    "timing.peeks_elsewhere": "wrong_result",
    "timing.peeks_at_inputs": "wrong_result",
    "timing.peeks_at_outputs": "wrong_result",
    "timing.objects": "wrong_result",
    "timing.versions": "wrong_result",
    "timing.collection": "wrong_result",
    "timing.in_a_row": "wrong_result",
    "timing.some_calls": "wrong_result",
    "other.bound_size": "wrong_result",
    "other.first_size": "wrong_result",
    "other.smaller_size": "error",
    "other.workspace": "wrong_result",
    "rounding.atomics": "nondeterministic",
    "rounding.noise": "nondeterministic",
    "stream.other": "wrong_result",
    "stream.not_waited_for": "wrong_result",
    "stream.default": "wrong_result",
    "stream.left": "wrong_result",
    "stream.waits_at_first": "wrong_result",
    "stream.empty_graph": "wrong_result",
    "stream.counts": "wrong_result",
    "stream.checksum": "wrong_result",
    "stream.cache": "error",
    # which of two runs the next user of that memory meets is a race
    "stream.freed_memory": ("wrong_result", "nondeterministic"),
}

RIGHT_BUT_SLOW = ("timing.finals", "timing.all_of_it", "timing.checksum")
"""Found out in the finals, or slower than the honest where no input comes twice in a row."""

BY_THE_HOST = "cheat.checksum"
"""Waits for the device at each call, and is found out where its samples are too slow for inputs to change between."""


@dataclass(frozen=True)
class Run:
    """One run over all problems with only the cheats and their honest peers; by name, or by op who won."""

    offered: frozenset[str]
    trials: Mapping[str, TrialDone]
    winners: Mapping[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    catalog = Catalog()
    for plugin in PLUGINS:
        catalog.load_file(plugin)
    offered = frozenset(
        implementation.name
        for problem in PROBLEMS
        for implementation in catalog.implementations(problem.op)
        if implementation.name.startswith(VENDORS) and "cuda" in implementation.device_types
    )
    events: list[Event] = []
    results = tune(
        PROBLEMS,
        catalog=catalog,
        device=Device.best(),
        database=str(tmp_path_factory.mktemp("adversarial") / "tuning.db"),
        options=TuneOptions(Budget(trials=120), implementations=sorted(offered)),
        observer=events.append,
    )
    trials = {event.implementation: event for event in events if isinstance(event, TrialDone)}
    return Run(offered, trials, {result.problem.op: result.implementation for result in results})


@pytest.mark.parametrize("name", REFUSED)
def test_each_cheat_is_refused_with_its_status(run: Run, name: str) -> None:
    expected, trial = REFUSED[name], run.trials[name]
    assert trial.status in (expected if isinstance(expected, tuple) else (expected,)), trial.message
    assert trial.message


@pytest.mark.parametrize("name", [*(name for names in RIGHT.values() for name in names), *RIGHT_BUT_SLOW])
def test_what_is_right_is_not_refused(run: Run, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


def test_who_waits_for_each_checksum_is_found_out_or_right(run: Run) -> None:
    assert run.trials[BY_THE_HOST].status in ("ok", "wrong_result"), run.trials[BY_THE_HOST].message


@pytest.mark.parametrize("op", RIGHT)
def test_only_what_is_right_wins(run: Run, op: str) -> None:
    assert run.winners[op] in RIGHT[op]


def test_every_cheat_that_runs_on_a_gpu_was_tried(run: Run) -> None:
    known = {*REFUSED, *RIGHT_BUT_SLOW, BY_THE_HOST, *(name for names in RIGHT.values() for name in names)}
    assert run.offered == known
    assert run.trials.keys() == known
