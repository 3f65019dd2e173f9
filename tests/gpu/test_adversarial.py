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
from tuning_db import Store, Transfer

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

HERE = Path(__file__).parent
ON_CPUS_TOO = HERE.parent / "adversarial"
PLUGINS = (
    ON_CPUS_TOO / "cheats.py",
    ON_CPUS_TOO / "cheats_that_return.py",
    ON_CPUS_TOO / "cheats_in_timing.py",
    ON_CPUS_TOO / "cheats_at_other_calls.py",
    ON_CPUS_TOO / "cheats_from_a_size_on.py",
    ON_CPUS_TOO / "cheats_that_remember.py",
    ON_CPUS_TOO / "cheats_that_are_late.py",
    ON_CPUS_TOO / "cheats_in_the_process.py",
    HERE / "cheats_on_streams.py",
    HERE / "cheats_in_rounding.py",
    HERE / "cheats_in_triton.py",
    HERE / "cheats_that_begin_early.py",
)
VENDORS = (
    "cheat.",
    "return.",
    "timing.",
    "other.",
    "large.",
    "late.",
    "process.",
    "stream.",
    "rounding.",
    "scratch.",
    "early.",
)
PROBLEMS = (
    # a million elements, and a multiple of nothing but two
    Problem("square", {"n": 2**20 + 2, "dtype": "float32"}),
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "tanh"}),
    # those that remember inputs have it to themselves
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "none"}),
    Problem("rms_norm", {"rows": 4, "cols": 4096, "dtype": "bfloat16"}),
    # so many rows that two orders of addition never agree in all of them
    Problem("softmax", {"rows": 1024, "cols": 4096, "dtype": "float32"}),
    Problem("vector_add", {"n": 2**20 + 2, "dtype": "float32"}),
)

RIGHT = {
    "square": (
        "cheat.honest",
        "cheat.honest_function",
        "return.honest",
        "timing.honest",
        "other.any_size",
        "large.honest",
        "late.honest",
        "late.honest_function",
        "process.honest",
        "process.function",
        "process.executor",
        "process.waiting_child",
        "stream.joined",
        "scratch.honest",
        "early.honest_cuda",
        "early.honest_triton",
        "early.honest_sum_cuda",
        "early.honest_sum_triton",
    ),
    "gelu": ("cheat.declared", "timing.gelu", "timing.precise", "timing.precise_function", "process.gelu"),
    "rms_norm": ("cheat.norm", "return.norm"),
    "softmax": ("rounding.declared_atomics", "large.softmax", "other.softmax", "other.own_strides"),
    "vector_add": ("large.add",),
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
    "return.lazy_copy": "wrong_result",
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
    "other.kept_strides": "wrong_result",
    "other.kept_rows": "wrong_result",
    "other.transposed": "wrong_result",
    "other.two_eps": "wrong_result",
    "large.workspace": "wrong_result",
    "large.workspace_beyond": "wrong_result",
    "large.strided_workspace": "wrong_result",
    "large.vectors": "wrong_result",
    "large.raises": "error",
    "large.unaligned": "wrong_result",
    "large.first_strides": "wrong_result",
    "large.second_strides": "wrong_result",
    "large.strides_beyond": "wrong_result",
    "large.sliced": "wrong_result",
    "large.overflows_beyond": "wrong_result",
    "large.overflows_below": "wrong_result",
    "process.dispatch_mode": "error",
    "process.function_mode": "error",
    "process.operator": "error",
    "process.puts_back": "error",
    "process.reference": "error",
    "process.functional": "error",
    "process.secrets": "error",
    "process.rival": "error",
    "process.profile": "error",
    "process.timer": "error",
    "process.cores": "error",
    "process.code": "error",
    "process.constants": "error",
    "process.no_settings": "error",
    "process.onednn": "error",
    "process.thresholds": "error",
    "process.tolerance": "error",
    "process.warnings": "error",
    "process.busy_thread": "error",
    "process.child": "error",
    "process.depth": "error",
    "process.numpy": "error",
    "process.autocast": "error",
    "process.default_device": "error",
    "scratch.past": "wrong_result",
    "early.cuda": "wrong_result",
    "early.triton": "wrong_result",
    "early.stores_cuda": "wrong_result",
    "early.stores_triton": "wrong_result",
    "early.scratch_cuda": "wrong_result",
    "early.scratch_triton": "wrong_result",
    "rounding.atomics": "nondeterministic",
    "rounding.noise": "nondeterministic",
    "stream.other": "wrong_result",
    "stream.not_waited_for": "wrong_result",
    "stream.default": "wrong_result",
    "stream.left": "wrong_result",
    "stream.waits_at_first": "wrong_result",
    "stream.empty_graph": "wrong_result",
    "stream.counts": "wrong_result",
    "stream.cache": "error",
    # which of two runs the next user of that memory meets is a race
    "stream.freed_memory": ("wrong_result", "nondeterministic"),
}

RIGHT_BUT_SLOW = ("timing.finals", "timing.all_of_it", "timing.checksum")
"""Found out in the finals, or slower than the honest where no input comes twice in a row."""

BY_THE_HOST = ("cheat.checksum", "process.first_inputs")
"""They wait for the device at each call. The first is found out where its samples are too slow for inputs to change
between, the second where it is fast enough to be judged on inputs that nobody has met."""

REFUSED_OR_BEATEN = {
    "stream.checksum": "wrong_result",
    "timing.storage_version": "wrong_result",
    "timing.object": "wrong_result",
    "timing.object_ends": "wrong_result",
    "timing.attribute": "wrong_result",
    "timing.subset": "wrong_result",
    "late.half": "wrong_result",
    "late.middle": "wrong_result",
    "late.whole": "wrong_result",
    # memory that a function returns too early may hold an earlier result
    "late.function": ("wrong_result", "nondeterministic"),
    "late.function_middle": ("wrong_result", "nondeterministic"),
}
"""A graph computes all of it, or the host is so slow that calls too few are made to remember, or to be late."""


@dataclass(frozen=True)
class Run:
    """One run over all problems with only the cheats and their honest peers; by name, or by op who won last."""

    offered: frozenset[str]
    trials: Mapping[str, TrialDone]
    winners: Mapping[str, str]
    won: frozenset[str]


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
        options=TuneOptions(Budget(trials=2 * len(offered)), implementations=sorted(offered)),
        observer=events.append,
    )
    trials = {event.implementation: event for event in events if isinstance(event, TrialDone)}
    winners = {result.problem.op: result.implementation for result in results}
    return Run(offered, trials, winners, frozenset(result.implementation for result in results))


@pytest.mark.parametrize("name", REFUSED)
def test_each_cheat_is_refused_with_its_status(run: Run, name: str) -> None:
    expected, trial = REFUSED[name], run.trials[name]
    assert trial.status in (expected if isinstance(expected, tuple) else (expected,)), trial.message
    assert trial.message


@pytest.mark.parametrize("name", [*(name for names in RIGHT.values() for name in names), *RIGHT_BUT_SLOW])
def test_what_is_right_is_not_refused(run: Run, name: str) -> None:
    assert run.trials[name].status == "ok", run.trials[name].message


@pytest.mark.parametrize("name", BY_THE_HOST)
def test_who_waits_for_the_device_is_found_out_or_right(run: Run, name: str) -> None:
    assert run.trials[name].status in ("ok", "wrong_result"), run.trials[name].message
    assert name not in run.won


@pytest.mark.parametrize("name", REFUSED_OR_BEATEN)
def test_who_remembers_or_is_late_is_refused_or_does_not_win(run: Run, name: str) -> None:
    expected, trial = REFUSED_OR_BEATEN[name], run.trials[name]
    refused = expected if isinstance(expected, tuple) else (expected,)
    assert trial.status in (*refused, "ok"), trial.message
    assert name not in run.won


@pytest.mark.parametrize("op", RIGHT)
def test_only_what_is_right_wins(run: Run, op: str) -> None:
    assert run.winners[op] in RIGHT[op]


def test_every_cheat_that_runs_on_a_gpu_was_tried(run: Run) -> None:
    known = {
        *REFUSED,
        *REFUSED_OR_BEATEN,
        *RIGHT_BUT_SLOW,
        *BY_THE_HOST,
        *(name for names in RIGHT.values() for name in names),
    }
    assert run.offered == known
    assert run.trials.keys() == known


COLS = 1024
AT_OTHER_COLUMNS = {3: "honest", 4: "short", 5: "vectors", 7: "raises"}
"""The only implementation that supports so many rows."""


@pytest.fixture(scope="module")
def transfers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Transfer]]:
    """Name -> the columns for which its winner answers, after a run with each at the rows that are left to it."""
    catalog = Catalog()
    catalog.load_file(ON_CPUS_TOO / "cheats_at_other_columns.py")
    database = str(tmp_path_factory.mktemp("columns") / "tuning.db")
    for _ in range(3):  # a busy machine may leave finals undecided, which the same call decides
        results = tune(
            [Problem("softmax", {"rows": rows, "cols": COLS, "dtype": "float32"}) for rows in AT_OTHER_COLUMNS],
            catalog=catalog,
            device=Device.best(),
            database=database,
            options=TuneOptions(
                Budget(trials=2), implementations=[f"columns.{each}" for each in AT_OTHER_COLUMNS.values()]
            ),
        )
        if all(result.implementation for result in results):
            break
    with Store.open(database) as store:
        return {AT_OTHER_COLUMNS[one.problem.dims["rows"]]: one.transfers for one in store.winners(op="softmax")}


@pytest.mark.parametrize("name", AT_OTHER_COLUMNS.values())
def test_a_winner_that_is_wrong_at_other_columns_answers_for_its_own_alone(
    transfers: Mapping[str, Mapping[str, Transfer]], name: str
) -> None:
    ends = transfers[name]["cols"]
    assert (ends.low, ends.high) == ((513, COLS) if name == "honest" else (COLS, COLS))
