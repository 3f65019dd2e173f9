"""The cheats of tests/adversarial on a GPU, and those that need one: none wins, each is refused for what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.run import Budget, tune

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

HERE = Path(__file__).parent
# a million elements, and a multiple of nothing but two
PROBLEM = Problem("square", {"n": 2**20 + 2, "dtype": "float32"})

RIGHT = ("cheat.honest", "cheat.honest_function", "stream.joined")
REFUSED: dict[str, str | tuple[str, ...]] = {
    "cheat.stale_memory": "wrong_result",
    "cheat.three_buffers": "wrong_result",
    "cheat.alias": "wrong_result",
    "cheat.beside": "wrong_result",
    "cheat.last_output": "wrong_result",
    "cheat.pointer": "wrong_result",
    "cheat.peek": "wrong_result",
    "cheat.skips": "wrong_result",
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
    "stream.other": "wrong_result",
    "stream.not_waited_for": "wrong_result",
    "stream.default": "wrong_result",
    "stream.left": "wrong_result",
    "stream.empty_graph": "wrong_result",
    # which of two runs the next user of that memory meets is a race
    "stream.freed_memory": ("wrong_result", "nondeterministic"),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrialDone]:
    catalog = Catalog()
    catalog.load_file(HERE.parent / "adversarial" / "cheats.py")
    catalog.load_file(HERE / "cheats_on_streams.py")
    events: list[Event] = []
    (result,) = tune(
        [PROBLEM],
        catalog=catalog,
        device=Device.best(),
        database=str(tmp_path_factory.mktemp("adversarial") / "tuning.db"),
        budget=Budget(trials=80),
        implementations=[*RIGHT, *REFUSED],
        observer=events.append,
    )
    assert result.implementation in RIGHT
    return {event.implementation: event for event in events if isinstance(event, TrialDone)}


@pytest.mark.parametrize("name", REFUSED)
def test_each_cheat_is_refused_with_its_status(trials: dict[str, TrialDone], name: str) -> None:
    expected = REFUSED[name]
    assert trials[name].status in (expected if isinstance(expected, tuple) else (expected,)), trials[name].message
    assert trials[name].message


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_refused(trials: dict[str, TrialDone], name: str) -> None:
    assert trials[name].status == "ok", trials[name].message
