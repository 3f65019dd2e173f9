"""Winners that come with the package: the lowest layer, for the very hardware that they were measured on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Device, DispatchWarning, Implementation, __version__, shipped
from registry.cli import checks
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.standings import standing
from registry.dispatch.resolve.winners import REGIME, OpWinners, Winners
from registry.errors import StoreError
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store

from ... import fresh

DIMS = {"rows": 8, "cols": 16, "dtype": "float32"}

H200 = Device(
    type="cuda",
    index=0,
    name="NVIDIA H200",
    architecture="sm_90",
    multiprocessors=132,
    memory_bytes=150_121_545_728,
    l2_bytes=62_914_560,
    shared_bytes=232_448,
    registers=65_536,
)

H100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory_bytes=84_825_604_096, l2_bytes=52_428_800)

SHIPPED_FOR = pytest.mark.parametrize("device", [H200, H100], ids=["h200", "h100"])

Ship = Callable[..., Decision]


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16)


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Put a softmax winner into a folder of shipped files, by the command that makes those in the package."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", str(folder))
    made = Store.open(tmp_path / "fleet.db")

    def shipped_as(
        dims: dict[str, Any], config: dict[str, Any], *, device: Device | None = None, **changes: Any
    ) -> Decision:
        there = device or Device.of("cpu")
        environment = Environment(there.hardware(), there.software())
        decision = Decision(
            problem=ProblemKey("softmax", 1, dims, ("cols", "dtype")),
            environment=environment,
            protocol=Protocol("cold"),
            candidate=CandidateKey("a.tuned", "1", config),
            median_us=7.25,
            created=datetime(2026, 1, 2, tzinfo=UTC),
        )
        decision = replace(decision, **changes)
        made.publish(made.start_run(environment), decision)
        with (folder / shipped.file_name(there.name)).open("w", encoding="utf-8") as stream:
            made.export(stream, hardware=there.hardware(), winners_only=True)
        shipped._read.cache_clear()
        return decision

    return shipped_as


def run(dispatcher: Dispatcher, x: torch.Tensor) -> tuple[str, dict[str, Any]]:
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    told = dispatcher.explain("softmax", x)
    return told.step, dict(told.config)


def test_without_a_database_shipped_winners_answer_and_explain_says_so(
    dispatcher: Dispatcher, told: Any, ship: Ship, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    assert run(dispatcher, x) == ("exact", {"block": 4})
    assert run(dispatcher, torch.randn(9, 16)) == ("nearest", {"block": 4})
    story = str(dispatcher.explain("softmax", x))
    assert "exact: the shipped winner of exactly this problem" in story
    assert f"from   shipped with {tmp_path / 'shipped'}" in story
    assert not (tmp_path / "tuning.db").exists()


def test_what_was_verified_elsewhere_does_not_run_where_only_what_was_verified_here_may(
    dispatcher: Dispatcher, told: Any, ship: Ship, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    dispatcher.configure(mode="verified")
    assert run(dispatcher, x) == ("reference", {})
    assert "it was verified elsewhere" in str(dispatcher.explain("softmax", x))
    publish(DIMS, "a.tuned", {"block": 2})
    dispatcher.forget()
    assert run(dispatcher, x) == ("exact", {"block": 2})


def test_the_users_decision_hides_the_shipped_one(
    dispatcher: Dispatcher, told: Any, ship: Ship, publish: Any, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4}, created=datetime(2030, 1, 1, tzinfo=UTC))
    publish(DIMS, "a.tuned", {"block": 2}, software={"torch": "another"})
    assert run(dispatcher, x) == ("exact", {"block": 2})
    assert str(tmp_path / "tuning.db") in dispatcher.explain("softmax", x).source
    assert run(dispatcher, torch.randn(32, 16)) == ("nearest", {"block": 2})


def test_a_decision_of_the_user_that_holds_no_more_leaves_it_to_the_shipped_one(
    dispatcher: Dispatcher, told: Any, ship: Ship, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    publish(DIMS, "a.tuned", {"block": 2}, fingerprint="of older source")
    assert run(dispatcher, x) == ("exact", {"block": 4})
    (miss,) = dispatcher.explain("softmax", x).misses
    assert miss.startswith("winner of exactly this problem: the source of a.tuned has changed")


def test_the_nearest_is_looked_for_in_both_and_the_users_comes_first_of_equals(
    dispatcher: Dispatcher, told: Any, ship: Ship, publish: Any
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({**DIMS, "rows": 4}, "a.tuned", {"block": 2})
    ship({**DIMS, "rows": 16}, {"block": 4})
    assert run(dispatcher, torch.randn(8, 16)) == ("nearest", {"block": 2})
    assert run(dispatcher, torch.randn(9, 16)) == ("nearest", {"block": 4})
    assert run(dispatcher, torch.randn(16, 16)) == ("exact", {"block": 4})


def test_who_has_imported_the_file_has_the_winners_as_their_own(store: Store, ship: Ship, tmp_path: Path) -> None:
    decision = ship(DIMS, {"block": 4})
    (file,) = (tmp_path / "shipped").iterdir()
    with file.open() as stream:
        store.load(stream)
    op = Catalog().op("softmax")
    found = Winners().of(op, Device.of("cpu"))
    assert [one.uid for one in found.index.exact(op, op.problem_of(DIMS))] == [decision.uid]
    assert found.placed.origin(decision) == store.url


@pytest.mark.parametrize(
    "change",
    [{"name": "NVIDIA H100"}, {"multiprocessors": 114}, {"memory_bytes": 2**36}, {"mig": True}, {"type": "cpu"}],
)
@pytest.mark.few(2)
def test_other_hardware_never_sees_them(ship: Ship, change: dict[str, Any]) -> None:
    op = Catalog().op("softmax")
    ship(DIMS, {"block": 4}, device=H200)
    assert len(Winners().of(op, H200).shipped) == 1
    assert len(Winners().of(op, replace(H200, index=1, memory_bytes=H200.memory_bytes + 2**20)).shipped) == 1
    assert Winners().of(op, replace(H200, **change)) == OpWinners()


def test_other_ops_and_regimes_are_not_taken_for_it(ship: Ship) -> None:
    ship(DIMS, {"block": 4}, device=H200)
    ship({**DIMS, "rows": 9}, {"block": 4}, device=H200, protocol=Protocol("hot"))
    assert len(Winners().of(Catalog().op("softmax"), H200).shipped) == 1
    assert Winners().of(Catalog().op("gelu"), H200).shipped == ()


def test_an_unreadable_database_is_one_warning_and_shipped_winners(
    dispatcher: Dispatcher, told: Any, ship: Ship, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    (tmp_path / "tuning.db").write_bytes(b"no database at all" * 64)
    with pytest.warns(DispatchWarning, match="winners are not used") as warned:
        assert run(dispatcher, x) == ("exact", {"block": 4})
    assert len(warned) == 1


def test_a_damaged_file_is_one_warning_and_the_users_winners(
    dispatcher: Dispatcher, told: Any, ship: Ship, publish: Any, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    (file,) = (tmp_path / "shipped").iterdir()
    file.write_text(file.read_text() + "{}\n")
    publish({**DIMS, "rows": 4}, "a.tuned", {"block": 2})
    with pytest.warns(DispatchWarning, match="line 5") as warned:
        assert run(dispatcher, x) == ("nearest", {"block": 2})
    assert len(warned) == 1


@pytest.mark.parametrize("given", ["0", " 0", "0 "])
@pytest.mark.few(1)
def test_a_variable_ignores_them(
    dispatcher: Dispatcher, told: Any, ship: Ship, x: torch.Tensor, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", given)
    assert run(dispatcher, x)[0] == "default"


@pytest.mark.parametrize("given", ["~/shipped", " ~/shipped ", "~/shipped/"])
@pytest.mark.few(1)
def test_a_folder_may_be_below_the_users_own(
    dispatcher: Dispatcher,
    told: Any,
    ship: Ship,
    x: torch.Tensor,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", given)
    assert run(dispatcher, x) == ("exact", {"block": 4})


@pytest.mark.parametrize("given", ["00", "yes", "~nobody-of-that-name/shipped"])
def test_anything_else_is_a_folder_that_is_not_there(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", given)
    with pytest.raises(StoreError, match=f"={given}: no such folder"):
        shipped.shipped(H200.hardware(), REGIME)


def test_the_doctor_counts_what_is_usable_and_what_is_stale(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.shipped_check().state == checks.ABSENT
    catalog = Catalog()
    native = next(one for one in catalog.implementations("softmax") if one.name == "torch.native")
    good = CandidateKey("torch.native", native.fingerprint())
    ship(DIMS, {}, device=Device.best(), candidate=good)
    assert "1 winner usable, 0 stale" in checks.shipped_check().found
    ship({**DIMS, "rows": 9}, {"block": 4}, device=Device.best())
    found = checks.shipped_check().found
    assert "1 winner usable, 1 stale" in found
    assert "softmax cols=16 dtype=float32 rows=9: a.tuned is not installed here" in found
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    assert checks.shipped_check().found == "ignored: KERNEL_REGISTRY_SHIPPED=0"


@pytest.mark.thorough
def test_the_doctor_counts_what_the_next_best_answers_as_usable(
    ship: Ship, publish: Any, store: Store, tmp_path: Path
) -> None:
    native = next(one for one in Catalog().implementations("softmax") if one.name == "torch.native")
    publish(
        DIMS,
        "a.gone",
        {},
        fingerprint=native.fingerprint(),
        hardware=Device.best().hardware(),
        baselines={"torch.native": 1.2},
        finals={"torch.native": {}},
    )
    with (tmp_path / "shipped" / shipped.file_name(Device.best().name)).open("w") as stream:
        store.export(stream, winners_only=True)
    assert "1 winner usable, 0 stale" in checks.shipped_check().found


def test_they_are_read_without_sqlalchemy_and_only_when_wanted() -> None:
    program = """
import os, sys
del os.environ["KERNEL_REGISTRY_SHIPPED"]
import registry
from registry import shipped
assert "pydantic" not in sys.modules and "tuning_db.exchange" not in sys.modules
assert shipped.shipped(registry.Device.of("cpu").hardware(), "cold") == ()
assert "tuning_db.exchange" not in sys.modules
hardware = {"type": "cuda", "name": "NVIDIA H200", "architecture": "sm_90", "multiprocessors": 132,
            "memory_bytes": 150323855360, "mig": False}
assert shipped.shipped(hardware, "cold")
assert "sqlalchemy" not in sys.modules
print(shipped.origin())
"""
    done = fresh.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"kernel-registry {__version__}"


# what is really shipped


def all_shipped(monkeypatch: pytest.MonkeyPatch, device: Device = H200) -> tuple[Decision, ...]:
    monkeypatch.delenv("KERNEL_REGISTRY_SHIPPED")
    return shipped.shipped(device.hardware(), REGIME)


_today = functools.cache(Catalog)
_read_once = functools.cache(Implementation.fingerprint)
"""The source of an implementation is read once, and not for each of its winners, which takes seconds."""


@SHIPPED_FOR
def test_every_shipped_winner_holds_for_todays_sources(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = all_shipped(monkeypatch, device)
    runners = shipped.runners(device.hardware(), REGIME)
    monkeypatch.setattr(Implementation, "fingerprint", _read_once)
    stale = [
        f"{one.problem.op} {dict(one.problem.dims)}: {why}"
        for one, why in standing(decisions, _today(), device, runners)
        if why
    ]
    assert decisions
    assert not stale, "tune them again and ship anew, see registry/shipped/__init__.py:\n" + "\n".join(stale)


@SHIPPED_FOR
@pytest.mark.few(1)
def test_no_shipped_winner_refuses_its_own_problem(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, refused = Catalog(), []
    for one in all_shipped(monkeypatch, device):
        by_name = {each.name: each for each in catalog.implementations(one.problem.op)}
        problem = catalog.op(one.problem.op).problem_of(dict(one.problem.dims))
        for reason in refusals(by_name[one.candidate.implementation], problem, device):
            refused += [f"{one.candidate.implementation}: {problem}: {reason}"] if "not installed" not in reason else []
    assert not refused, "they are never run: tune them again\n" + "\n".join(refused)


def test_shipped_files_are_small_and_hold_nothing_but_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNEL_REGISTRY_SHIPPED")
    known = {shipped.file_name(device.name).removesuffix(".jsonl") for device in (H200, H100)}
    assert set(shipped.names()) == known
    for name in known:
        lines = files("registry.shipped").joinpath(f"{name}.jsonl").read_text().splitlines()
        kinds = [json.loads(line)["kind"] for line in lines]
        assert set(kinds) == {"header", "run", "decision", "winner"}
        assert kinds.count("decision") == kinds.count("winner") == len(all_shipped_uids(lines))
        assert sum(map(len, lines)) < 2_500 * kinds.count("decision") + 20_000 * kinds.count("run")


def all_shipped_uids(lines: list[str]) -> set[str]:
    return {data["decision"] for data in map(json.loads, lines) if data["kind"] == "winner"}


@pytest.mark.parametrize("given", ["1", " 1", "1 ", "", " "])
def test_one_is_the_default(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = all_shipped(monkeypatch)
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", given)
    assert shipped.shipped(H200.hardware(), REGIME) == decisions
    assert shipped.origin().startswith("kernel-registry ")


def test_a_folder_that_is_not_there_or_broken_is_told(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", str(tmp_path / "absent"))
    assert shipped.names() == []
    with pytest.raises(StoreError, match="absent: no such folder"):
        shipped.shipped(H200.hardware(), REGIME)
    dispatcher.register(told("a.tuned"))
    with pytest.warns(DispatchWarning, match="absent: no such folder"):
        assert run(dispatcher, x)[0] == "default"
    assert checks.shipped_check().state == checks.FAULT
    (tmp_path / "absent").mkdir()
    assert shipped.shipped(H200.hardware(), REGIME) == ()
    (tmp_path / "absent" / "nvidia-h200.jsonl").write_text("no export\n")
    shipped._read.cache_clear()
    with pytest.raises(StoreError, match=r"nvidia-h200\.jsonl: line 1: "):
        shipped.shipped(H200.hardware(), REGIME)


def test_a_folder_that_has_changed_is_read_again_by_reload(
    dispatcher: Dispatcher, told: Any, ship: Ship, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    ship(DIMS, {"block": 4})
    file = tmp_path / "shipped" / shipped.file_name(Device.of("cpu").name)
    before = file.read_bytes()
    ship({**DIMS, "rows": 9}, {"block": 2})
    after = file.read_bytes()
    file.write_bytes(before)
    assert run(dispatcher, torch.randn(9, 16)) == ("nearest", {"block": 4})
    file.write_bytes(after)
    assert dispatcher.reload() == 1
    assert run(dispatcher, torch.randn(9, 16)) == ("exact", {"block": 2})
