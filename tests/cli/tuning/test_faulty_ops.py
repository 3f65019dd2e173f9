"""Shapes of several ops, of which one has a tolerance that accepts what was not computed: the others are tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuning_db import Store

from ..conftest import Command

PLUGIN = """
from dataclasses import replace

import registry
import torch
from registry.contracts import SQUARE

def of(name, atol):
    tolerance = replace(SQUARE.tolerance, atol=dict.fromkeys(SQUARE.tolerance.atol, atol))
    schema = f"{name}(Tensor x) -> Tensor y"
    return replace(SQUARE, name=name, schema=schema, tolerance=tolerance, examples=SQUARE.examples[:2], backward=None)

@registry.defines
def ops():
    return [of("acme::blind", 1e30), of("acme::sound", 1e-9)]

class Square(registry.Implementation):
    name, device_types, returns_outputs = "mine.square", frozenset({"cpu"}), True
    def bind(self, problem, config, device, built):
        return lambda outputs, arguments, scratch: torch.square(arguments[0])

class OfBlind(Square):
    op = "acme::blind"

class OfSound(Square):
    op = "acme::sound"

@registry.implements("acme::blind")
def blind():
    return [OfBlind()]

@registry.implements("acme::sound")
def sound():
    return [OfSound()]
"""
REASON = "its tolerance accepts an all-zero output as y"


@pytest.fixture
def asked(tmp_path: Path) -> list[object]:
    plugin, shapes = tmp_path / "mine.py", tmp_path / "several.yaml"
    plugin.write_text(PLUGIN)
    shapes.write_text("acme::blind:\n  - {n: [64, 128], dtype: float32}\nacme::sound:\n  - {n: 64, dtype: float32}\n")
    return ["--plugin", plugin, "--shapes", shapes]


@pytest.mark.usefixtures("own_lock", "few_blocks")
def test_tune_skips_the_op_tunes_the_others_and_ends_with_exit_code_1(
    command: Command, asked: list[object], tmp_path: Path
) -> None:
    database = tmp_path / "new.db"
    told = command("tune", *asked, "--device", "cpu", "--trials", "2", "--db", database)
    assert told.code == 1, told
    assert f"2 problems of acme::blind skipped: {REASON}" in " ".join(told.out.split())
    assert "a tolerance must refuse what was not computed" in " ".join(told.out.split())
    assert "1 problem, 2 skipped" in told.out
    with Store.open(database, create=False) as store:
        assert [winner.problem.op for winner in store.winners()] == ["acme::sound"]


def test_an_op_by_itself_is_an_error(command: Command, asked: list[object]) -> None:
    told = command("tune", *asked, "--op", "acme::blind", "--device", "cpu")
    assert told.code == 2
    assert f"op 'acme::blind': {REASON}" in " ".join(told.err.split())


def test_a_fleet_is_given_the_other_ops(command: Command, asked: list[object]) -> None:
    plan = ["registry", "fleet", "plan", *asked, "--gpus", "cpu"]
    told = command(*plan)
    assert told.code == 1, told
    assert f"acme::blind is left out: {REASON}" in " ".join(told.out.split())
    assert "1 job with 1 problem queued in" in told.out
    found = json.loads(command(*plan, "--json").out)
    assert (found["left_out"], found["already"]) == (["acme::blind"], 1)
