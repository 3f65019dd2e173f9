"""Whoever takes the strides of one tensor for those of another is refused, also where rows must be dense."""

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
PROBLEM = ATTENTION_BACKWARD.problem_of({**SIZES, **FORM})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return CheatingRun("cheats_by_strides.py", "strides", [PROBLEM], tmp_path_factory.mktemp("strides"))


@THOROUGH
def test_the_tuner_refuses_whoever_takes_one_tensors_strides_for_anothers(run: CheatingRun) -> None:
    trial = run.trials["out_by_gradient"]
    assert trial.status == "wrong_result"
    assert "with unlike inputs" in trial.message


@THOROUGH
def test_their_honest_peer_is_accepted(run: CheatingRun) -> None:
    assert run.trials["honest"].status == "ok", run.trials["honest"].message
    assert run.offered == run.trials.keys() == {"out_by_gradient", "honest"}


@pytest.mark.parametrize("name", ["out_by_gradient", pytest.param("honest", marks=THOROUGH)])
def test_the_public_check_tells_them_apart(name: str) -> None:
    catalog = Catalog()
    catalog.load_file(Path(__file__).with_name("cheats_by_strides.py"))
    (implementation,) = (one for one in catalog.implementations("attention_backward") if one.name == f"strides.{name}")
    if name == "honest":
        assert check_implementation(implementation, ATTENTION_BACKWARD, problems=[PROBLEM.dims]).ok
        return
    with pytest.raises(CheckError, match="unlike"):
        check_implementation(implementation, ATTENTION_BACKWARD, problems=[PROBLEM.dims])
