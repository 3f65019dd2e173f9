"""``registry drift``: winners timed again beside their defaults, with an exit code for cron."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry import Device
from registry.discovery.catalog import Catalog
from registry.tuner.stored_winners import problem_key
from tuning_db import CandidateKey, Decision, Environment, Interval, Protocol, Store

from ..conftest import Command

PLUGIN = '''
"""Squares: a slow default, and what once was faster and right."""
import torch
import registry

def slow(x):
    for _ in range(200):
        y = x * x
    return y

def fast(x):
    return torch.mul(x, x)

def wrong(x):
    return x * 3

@registry.implements("square")
def squares():
    return [
        registry.implementation_of("square", "drifting.slow", slow, device_types="{device}", preference=10),
        registry.implementation_of("square", "drifting.fast", fast, device_types="{device}"),
        registry.implementation_of("square", "drifting.wrong", wrong, device_types="{device}"),
    ]
'''
HUGE, ANY = Interval(1e7, 9e6, 1.1e7), Interval(200.0, 1e-6, 1e6)


class Drifting:
    """A plugin file, and winners of its implementations that were measured under an older torch on a device."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.file = folder / "drifting.py"
        self.file.write_text(PLUGIN.format(device=device))
        self._device = Device.of(device)
        self._catalog = Catalog(entry_points=())
        self._catalog.load_file(self.file)

    def store(self, n: int, name: str, then: Interval, fingerprint: str = "") -> str:
        """Store a winner of squares of ``n`` elements; returns its uid."""
        op, here = self._catalog.op("square"), self._device
        environment = Environment(here.hardware(), {**here.software(), "torch": "2.0"})
        key = CandidateKey(name, fingerprint or self._catalog.implementation("square", name).fingerprint(), {})
        problem = problem_key(op, op.problem_of({"n": n, "dtype": "float32"}))
        ratios = {"drifting.slow": then.value}
        decision = Decision(problem, environment, Protocol("cold"), key, 5.0, default_ratio=then, baselines=ratios)
        with Store.open() as store:
            assert store.publish(store.start_run(environment), decision)
        return decision.uid


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the database and missed calls are."""
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(tmp_path / "misses.yaml"))
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    return tmp_path


@pytest.fixture
def drifting(own_files: Path) -> Drifting:
    return Drifting(own_files)


@pytest.mark.thorough
def test_winners_that_do_not_hold_any_more_raise_an_alarm(
    command: Command, drifting: Drifting, few_blocks: None, own_lock: None
) -> None:
    check_alarms(command, drifting, "cpu")


def check_alarms(command: Command, drifting: Drifting, device: str) -> None:
    """Winners of each kind, timed again on a device."""
    store, database = drifting.store, drifting.file.with_name("tuning.db")
    uids = {
        "slower": store(4096, "drifting.fast", HUGE),
        "same": store(8192, "drifting.fast", ANY),
        "wrong": store(4097, "drifting.wrong", ANY),
        "stale": store(8193, "drifting.fast", ANY, "another source"),
        "no default": store(4098, "drifting.slow", Interval(1.0, 0.9, 1.1)),
    }
    before = database.read_bytes()
    told = command("registry", "drift", "--device", device, "--plugin", drifting.file, "--json")
    assert told.code == 1, told.err
    found = {one["uid"]: one for one in json.loads(told.out)}
    assert {kind: found[uid]["kind"] for kind, uid in uids.items()} == {kind: kind for kind in uids}
    assert {kind for kind, uid in uids.items() if found[uid]["alarm"]} == {"slower", "wrong"}
    same = found[uids["same"]]
    assert same["now"]["low"] < same["now"]["value"] < same["now"]["high"]
    assert same["changed"] == [f"torch 2.0 -> {Device.of(device).software()['torch']}"]
    assert "wrong_result" in found[uids["wrong"]]["reason"]
    assert database.read_bytes() == before, "nothing is stored"


def test_without_an_alarm_it_ends_well(command: Command, drifting: Drifting) -> None:
    drifting.store(4098, "drifting.slow", Interval(1.0, 0.9, 1.1))
    told = command("registry", "drift", "--device", "cpu", "--plugin", drifting.file)
    assert told.code == 0, told.err
    assert told.out.splitlines()[-1] == "1 of 1 winner timed again: 1 no default"
    assert f"torch 2.0 -> {Device.of('cpu').software()['torch']}: 1 winner" in told.out
    other = command("registry", "drift", "--device", "cpu", "--plugin", drifting.file, "--op", "softmax")
    assert other.code == 0
    assert other.out == "0 winners here, none from before a change of driver, torch or triton\n"


def test_what_nobody_calls_is_left_out(command: Command, drifting: Drifting) -> None:
    called = drifting.store(4098, "drifting.slow", ANY)
    drifting.store(2**22, "drifting.slow", ANY)
    counts = drifting.file.with_name("counts.yaml")
    counts.write_text("square:\n  - {n: 4099, dtype: float32, count: 3}\n")
    arguments = ("registry", "drift", "--device", "cpu", "--plugin", drifting.file, "--json")
    assert [one["uid"] for one in json.loads(command(*arguments, "--counts", counts).out)] == [called]
    drifting.file.with_name("misses.yaml").write_text(counts.read_text())
    assert [one["uid"] for one in json.loads(command(*arguments).out)] == [called], "the file of missed calls"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sample", "0"], "--sample 0: expected at least 1"),
        (["--counts", "absent.yaml"], "absent.yaml"),
        (["--op", "softmaks"], "unknown op 'softmaks'"),
        (["--db", "drifting.py"], "drifting.py is not a SQLite database"),
    ],
)
def test_bad_input_is_told(
    command: Command, drifting: Drifting, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(drifting.file.parent)
    told = command("registry", "drift", "--device", "cpu", *arguments)
    assert (told.code, told.out) == (2, "")
    assert message in told.err
