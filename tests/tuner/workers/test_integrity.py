"""What a stranger's code replaces is found, put back and attributed; what nobody touched is no fault."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import statistics
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contract import Op
from registry.contracts import SQUARE
from registry.correctness import bits
from registry.correctness.bounds import Bounds
from registry.device import Device
from registry.implementation import Implementation, Run
from registry.problem import Problem, TensorSpec
from registry.space import Config
from registry.tuner.measure import copy_floor, device_samplers, interleaving, rotation, samplers, sampling, stack
from registry.tuner.measure import series as measure
from registry.tuner.verify import probes, renewed, session, timed, verify
from registry.tuner.verify import verdicts as checks
from registry.tuner.verify.verdicts import WrongError
from registry.tuner.workers import dictionary_writes, settings, worker
from registry.tuner.workers.integrity import WATCHED, Integrity, Trust, _Part

HERE = __name__.partition(".")[0]


class Ours(Implementation):
    """Of this module."""

    op, name = "square", "test.ours"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise NotImplementedError


@pytest.fixture(params=[dictionary_writes.NUMBERED, False], ids=["numbered", "not_numbered"])
def integrity(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Integrity]:
    """Taken, and looked at once: from then on a look is short where nothing was written to."""
    monkeypatch.setattr(dictionary_writes, "NUMBERED", request.param)
    taken = Integrity()
    taken.restore()
    yield taken
    taken.restore()


def test_nothing_is_found_where_nothing_was_replaced(integrity: Integrity) -> None:
    assert integrity.restore() == []


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (time, "perf_counter_ns"),
        (statistics, "median"),
        (builtins, "min"),
        (torch, "equal"),
        (torch.Tensor, "clone"),  # inherited: a new name that hides the old one
        (torch.cuda.Event, "elapsed_time"),
        (torch.cuda, "synchronize"),
        (verify, "verify_timed"),
        (Bounds, "holding"),
        (bits, "having_same_bits"),
        (Op, "output_specs"),
        (TensorSpec, "empty"),
        (verify, "zip"),  # a builtin hidden in one of our modules
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.few(6)
def test_what_was_replaced_is_named_and_put_back(integrity: Integrity, place: Any, name: str) -> None:
    before = getattr(place, name, None)
    setattr(place, name, lambda *_: 0)
    found = integrity.restore()
    assert [replaced.name.rpartition(".")[2] for replaced in found] == [name]
    assert found[0].owner == HERE
    assert getattr(place, name, None) == before
    assert integrity.restore() == []


def test_what_is_replaced_after_a_look_that_put_something_back_is_found_too(integrity: Integrity) -> None:
    for _ in range(3):
        vars(verify)["verify_timed"] = min  # a write past the module's own setattr
        assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["verify_timed"]
        assert integrity.restore() == []


@pytest.mark.parametrize("place", [verify, Bounds])
def test_what_was_replaced_for_a_moment_is_found(integrity: Integrity, place: Any) -> None:
    name = "holding"
    was = vars(place)[name]
    setattr(place, name, lambda *_: 0)
    setattr(place, name, was)
    found = [str(replaced) for replaced in integrity.restore()]
    assert len(found) == dictionary_writes.NUMBERED
    assert all(each.endswith("which was put back afterwards") for each in found)
    assert integrity.restore() == []


def test_a_name_of_ours_that_was_removed_for_a_moment_is_found(integrity: Integrity) -> None:
    was = vars(verify).pop("verify_timed")
    vars(verify)["verify_timed"] = was
    assert len(integrity.restore()) == dictionary_writes.NUMBERED


def test_others_may_write_to_what_is_theirs(integrity: Integrity) -> None:
    for place in (time, torch):
        vars(place)["__doc__"] = place.__doc__
    verify.__dict__["a_name_that_is_new"] = 1  # as a warning or a submodule leaves one
    try:
        assert integrity.restore() == []
    finally:
        del verify.__dict__["a_name_that_is_new"]
        integrity.restore()


def test_a_name_in_place_of_another_is_found(integrity: Integrity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(verify, "__doc__")
    vars(verify)["zip"] = lambda *_: ()
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["zip"]
    assert integrity.restore() == []


def test_a_name_that_comes_to_hide_another_later_is_found(
    integrity: Integrity, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(verify)["as_told"] = lambda: 0
    assert integrity.restore() == []
    monkeypatch.setattr(builtins, "as_told", lambda: 1, raising=False)
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["as_told"]
    assert integrity.restore() == []


def test_other_code_in_a_function_is_found_and_put_back(integrity: Integrity) -> None:
    function = Bounds.holding
    was = function.__code__
    function.__code__ = (lambda self, output: torch.ones((), dtype=torch.bool)).__code__
    (found,) = integrity.restore()
    assert (found.name.rpartition(".")[2], found.owner.rpartition(".")[2] != "") == ("holding", True)
    assert (Bounds.holding, function.__code__) == (function, was)
    assert integrity.restore() == []


def test_other_defaults_of_a_function_are_found_and_put_back(integrity: Integrity) -> None:
    was = verify.verify_timed.__kwdefaults__
    verify.verify_timed.__kwdefaults__ = {"alone": False}
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["verify_timed"]
    assert verify.verify_timed.__kwdefaults__ is was
    assert integrity.restore() == []


@pytest.mark.parametrize("name", ["_BOUND", "_TOLD"])
def test_constants_of_our_own_modules_are_put_back(integrity: Integrity, name: str) -> None:
    was = getattr(renewed, name)
    setattr(renewed, name, 1e9)
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == [name]
    assert getattr(renewed, name) == was
    assert integrity.restore() == []


def test_tables_are_put_back(integrity: Integrity) -> None:
    table: Any = settings.SETTINGS
    was = table.pop("timers")
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["SETTINGS"]
    assert table["timers"] is was
    assert integrity.restore() == []


def test_numbers_of_a_tolerance_are_put_back(integrity: Integrity) -> None:
    rtol = dict(SQUARE.tolerance.rtol)
    own = dataclasses.replace(SQUARE.tolerance, rtol=rtol)
    op = dataclasses.replace(SQUARE, tolerance=own)
    integrity.keep(op, [])
    assert integrity.restore() == []
    rtol["float32"] = torch.inf
    assert [replaced.name for replaced in integrity.restore()] == ["square.tolerance.rtol"]
    assert rtol == SQUARE.tolerance.rtol
    assert integrity.restore() == []


def test_fields_of_a_contract_are_put_back_however_they_were_replaced(integrity: Integrity) -> None:
    op = dataclasses.replace(SQUARE)
    integrity.keep(op, [])
    assert integrity.restore() == []
    object.__setattr__(op, "reference", torch.zeros_like)
    assert [replaced.name for replaced in integrity.restore()] == ["square.reference"]
    object.__setattr__(op, "__dict__", {**vars(op), "reference": torch.zeros_like})
    assert [replaced.name for replaced in integrity.restore()] == ["square.reference"]
    assert op.reference is SQUARE.reference
    assert integrity.restore() == []


def test_methods_of_an_implementation_are_put_back(integrity: Integrity, monkeypatch: pytest.MonkeyPatch) -> None:
    integrity.keep(SQUARE, [Ours()])
    assert integrity.restore() == []
    monkeypatch.setattr(Ours, "bind", lambda *_: None)
    assert [replaced.name.rpartition(".")[2] for replaced in integrity.restore()] == ["bind"]
    assert integrity.restore() == []


def _multiplied(x: torch.Tensor) -> torch.Tensor:
    return x * x


def test_functions_of_an_implementations_module_are_put_back(integrity: Integrity) -> None:
    was, here = _multiplied, vars(sys.modules[__name__])
    integrity.keep(SQUARE, [Ours()])
    assert integrity.restore() == []
    here["_multiplied"] = statistics.mean
    assert [str(replaced) for replaced in integrity.restore()] == [f"{__name__}._multiplied by statistics"]
    assert here["_multiplied"] is was
    assert integrity.restore() == []


def test_a_plugin_may_replace_functions_of_its_own(integrity: Integrity, monkeypatch: pytest.MonkeyPatch) -> None:
    integrity.keep(SQUARE, [Ours()])
    assert integrity.restore() == []
    for _ in range(2):
        monkeypatch.setitem(vars(sys.modules[__name__]), "_multiplied", lambda x: x)
        assert integrity.restore() == []


def test_whatever_verifying_and_measuring_call_is_watched() -> None:
    callers = (
        checks,
        copy_floor,
        device_samplers,
        measure,
        probes,
        rotation,
        samplers,
        sampling,
        session,
        stack,
        timed,
    )
    called = {
        part.__module__
        for module in (*callers, interleaving, verify, worker)
        for part in vars(module).values()
        if inspect.isfunction(part) or inspect.isclass(part)
    }
    # what describes and builds a candidate, and errors: nothing there judges or times it
    other = {
        "registry.artifact",
        "registry.device",
        "registry.discovery.catalog",
        "registry.dispatch.plans.prepared",
        "registry.errors",
    }
    ours = {name for name in called if name.startswith("registry.")}
    assert {name for name in ours if not name.startswith(WATCHED)} <= other


def test_what_a_plugin_replaced_while_it_was_imported_is_held_against_it(
    integrity: Integrity, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trust(integrity).admit(Ours())
    trust = Trust(integrity)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    for _ in range(2):
        with pytest.raises(WrongError, match="perf_counter_ns by"):
            trust.admit(Ours())
    assert time.perf_counter_ns() > 0
    assert not trust.lost


def test_what_is_replaced_during_a_trial_costs_the_process_its_trust(
    integrity: Integrity, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = Trust(integrity)
    assert trust.breach() == ""
    monkeypatch.setattr(statistics, "median", lambda data: 0)
    assert "statistics.median by" in trust.breach()
    assert trust.lost
    assert trust.breach() == ""


def test_a_setting_of_the_whole_process_is_put_back(integrity: Integrity) -> None:
    trust = Trust(integrity)
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)
    try:
        breach = trust.breach()
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
    assert "float32 matmul precision to high" in breach
    assert "default dtype to torch.float64" in breach
    assert trust.breach() == ""
    assert not trust.lost


def test_what_an_interrupted_look_has_not_reached_is_found_by_the_next(
    integrity: Integrity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError

    trust = Trust(integrity)
    was = worker.verify
    monkeypatch.setattr(worker, "verify", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(_Part, "restore", interrupt)
        with pytest.raises(InterruptedError):
            trust.breach()
    assert trust.lost
    assert "registry.tuner.workers.worker.verify" in trust.breach()
    assert worker.verify is was


def test_places_that_refuse_to_be_written_to_are_written_to_all_the_same(integrity: Integrity) -> None:
    class Shut(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            raise RuntimeError("shut")

    was = worker.verify
    worker.__class__ = Shut
    try:
        vars(worker)["verify"] = lambda *_: None
        assert [replaced.name for replaced in integrity.restore()] == ["registry.tuner.workers.worker.verify"]
        assert worker.verify is was
    finally:
        ModuleType.__setattr__(worker, "__class__", ModuleType)
        worker.verify = was
