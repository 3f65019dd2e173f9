"""Samplers by name: built in, installed by a package, or anywhere on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from registry.errors import InvalidArgumentError
from registry.space import Space
from registry.tuner.search.joint_space import JointSpace
from registry.tuner.search.samplers import RegistrySampler, SnappedSampler
from registry.tuner.search.samplers.names import sampler_named

SPACE = JointSpace({"acme.one": Space(a=[1, 2, 4])})

SOURCE = """
import optuna
from registry.tuner.search.samplers import DistinctSampler

class Last(DistinctSampler):
    def propose(self, study, trial):
        return max(number for number, untried in enumerate(self.tried.untried) if untried)

def twice():
    return optuna.samplers.RandomSampler()

def nothing():
    return 7

def broken(seed):
    raise RuntimeError("no licence")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "acme_samplers.py").write_text(SOURCE)
    points = tmp_path / "acme-1.0.dist-info"
    points.mkdir()
    (points / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (points / "entry_points.txt").write_text("[kernel_registry_samplers]\nacme = acme_samplers:Last\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_samplers", raising=False)
    return "acme_samplers"


@pytest.mark.parametrize("name", ["tpe", "random", "nsgaii", "optuna.samplers:TPESampler"])
def test_a_sampler_of_optunas_is_snapped(name: str) -> None:
    assert isinstance(sampler_named(name)(SPACE, starts=[0], seed=1), SnappedSampler)


def test_the_default_is_the_tuners_own() -> None:
    assert sampler_named("registry") is RegistrySampler


@pytest.mark.parametrize("name", ["acme", "acme_samplers:Last"])
def test_a_class_of_ours_is_used_as_it_is(module: str, name: str) -> None:
    sampler = sampler_named(name)(SPACE, starts=[0], seed=1)
    assert type(sampler).__name__ == "Last"
    assert isinstance(sampler_named(f"{module}:twice")(SPACE, starts=[0], seed=1), SnappedSampler)


def test_an_unknown_name_lists_the_choices(module: str) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown sampler 'cmaes'") as caught:
        sampler_named("cmaes")
    assert caught.value.hint == "known: acme, gp, nsgaii, random, registry, tpe; any other is module:name"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("acme_samplers:Absent", "has no attribute 'Absent'"),
        ("acme_absent:Last", "No module named 'acme_absent'"),
        ("acme_samplers:nothing", "it makes a int"),
        ("acme_samplers:broken", "RuntimeError: no licence"),
        ("optuna.samplers:GridSampler", "search_space"),
    ],
)
def test_what_makes_no_sampler_is_told_at_once(module: str, name: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        sampler_named(name)
    assert caught.value.hint


def test_a_sampler_whose_package_is_missing_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(InvalidArgumentError, match="scipy") as caught:
        sampler_named("gp")
    assert caught.value.hint == "pip install scipy"
