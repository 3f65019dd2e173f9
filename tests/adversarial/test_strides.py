"""Whoever takes the strides of one tensor for those of another, or 0 for none, is refused, also on dense rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.contracts import ATTENTION_BACKWARD
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.testing import check_implementation

from ..tiers import THOROUGH
from .cheating_run import CheatingRun

SIZES = {"batch": 2, "heads": 4, "kv_heads": 4, "q_len": 24, "kv_len": 24, "head_dim": 32}
FORM = {"causal": True, "mask": "none", "softcap": False, "span": False, "dtype": "float32"}
REFUSED = {"out_by_gradient": "unlike", "zero_for_none": "dense-expanded"}
"""The layout in which each is wrong."""
PROBLEM = ATTENTION_BACKWARD.problem_of({**SIZES, **FORM})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return CheatingRun("cheats_by_strides.py", "strides", [PROBLEM], tmp_path_factory.mktemp("strides"))


@THOROUGH
@pytest.mark.parametrize("name", REFUSED)
def test_the_tuner_refuses_whoever_misreads_strides(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    assert trial.status == "wrong_result"
    assert f"with {REFUSED[name]} inputs" in trial.message


@THOROUGH
def test_their_honest_peer_is_accepted(run: CheatingRun) -> None:
    assert run.trials["honest"].status == "ok", run.trials["honest"].message
    assert run.offered == run.trials.keys() == {*REFUSED, "honest"}


@pytest.mark.parametrize("name", [*REFUSED, pytest.param("honest", marks=THOROUGH)])
def test_the_public_check_tells_them_apart(name: str) -> None:
    catalog = Catalog()
    catalog.load_file(Path(__file__).with_name("cheats_by_strides.py"))
    (implementation,) = (one for one in catalog.implementations("attention_backward") if one.name == f"strides.{name}")
    if name == "honest":
        assert check_implementation(implementation, ATTENTION_BACKWARD, problems=[PROBLEM.dims]).ok
        return
    with pytest.raises(CheckError, match=f" {REFUSED[name]} "):
        check_implementation(implementation, ATTENTION_BACKWARD, problems=[PROBLEM.dims])
