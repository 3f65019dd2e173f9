"""Whoever is fast because it is wrong does not win: each cheat is refused with its status and a reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.events import Event, Result, TrialDone
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune

HERE = Path(__file__).parent
CPU = Device.of("cpu")
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
    "checksum": ("wrong_result", ""),
    "first_calls": ("wrong_result", ""),
    "waits": ("wrong_result", "expected"),
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


class Run:
    """One run over all problems with only the cheats and their honest peers."""

    def __init__(self, database: Path) -> None:
        catalog = Catalog()
        catalog.load_file(HERE / "cheats.py")
        clock = time.perf_counter_ns
        try:
            catalog.load_file(HERE / "patched_clock.py")
        finally:
            # the file patches this process too, and the other tests need a clock
            time.perf_counter_ns = clock
        events: list[Event] = []
        self.offered = {
            implementation.name
            for op in ("square", "gelu", "rms_norm")
            for implementation in catalog.implementations(op)
            if implementation.name.startswith(("cheat.", "patched."))
        }
        results = tune(
            PROBLEMS,
            catalog=catalog,
            device=CPU,
            database=str(database),
            options=TuneOptions(Budget(trials=80), implementations=sorted(self.offered)),
            observer=events.append,
        )
        self.winners: dict[str, Result] = {result.problem.op: result for result in results}
        self.trials = {event.implementation: event for event in events if isinstance(event, TrialDone)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("adversarial")
    with pytest.MonkeyPatch.context() as patch:
        # nothing is compiled, and the lock of the device is this run's own: it waits for no other that measures
        patch.setenv("KERNEL_REGISTRY_CACHE", str(folder / "cache"))
        return Run(folder / "tuning.db")


@pytest.mark.parametrize("cheat", REFUSED)
def test_each_cheat_is_refused_with_its_status_and_the_reason(run: Run, cheat: str) -> None:
    status, words = REFUSED[cheat]
    trial = run.trials[f"cheat.{cheat}"]
    assert trial.status in status.split("|"), trial.message
    assert trial.message
    assert words in trial.message


def test_a_clock_that_is_patched_at_import_is_put_back_and_held_against_its_plugin(run: Run) -> None:
    trial = run.trials["patched.import"]
    assert trial.status == "error"
    assert "time.perf_counter_ns" in trial.message


@pytest.mark.parametrize("honest", RIGHT)
def test_what_is_right_is_not_refused(run: Run, honest: str) -> None:
    trial = run.trials[f"cheat.{honest}"]
    assert trial.status == "ok", trial.message


def test_only_what_is_right_wins(run: Run) -> None:
    winners = {op: result.implementation for op, result in run.winners.items()}
    assert winners["square"] in {"cheat.honest", "cheat.honest_function"}
    assert winners["gelu"] == "cheat.declared"
    assert winners["rms_norm"] == "cheat.norm"


def test_every_cheat_was_tried(run: Run) -> None:
    known = {f"cheat.{name}" for name in (*REFUSED, *RIGHT)} | {"patched.import"}
    assert run.offered == known
    assert run.trials.keys() == known
