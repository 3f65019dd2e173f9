"""Whoever knows an op's inputs' own form alone is refused: their ranks, dtypes, arguments left out and addresses.

The tuner meets what the public check does in probes of the same names; a run of it with all of these is thorough.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry import contracts
from registry.contract import Op
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.testing import check_implementation

from ..tiers import THOROUGH
from .cheating_run import CheatingRun, each_of

MASKED = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 12, "kv_len": 20, "head_dim": 16, "causal": False,
    "mask": "additive", "softcap": False, "span": False, "dtype": "float32",
}  # fmt: skip
SMALL = {
    "rms_norm": {"rows": 12, "cols": 300, "dtype": "float32"},
    "vector_add": {"n": 5000, "dtype": "float32"},
    "softmax": {"rows": 12, "cols": 300, "dtype": "float32"},
    "embedding": {"rows": 60, "cols": 16, "vocabulary": 100, "frequency": "uniform", "dtype": "float32"},
    "kv_cache_append": {
        "tokens": 9, "kv_heads": 2, "head_dim": 16, "block_size": 4, "kv_dtype": "float8_e4m3fn", "dtype": "float32",
    },
    "grouped_gemm": {"m": 40, "n": 24, "k": 32, "experts": 3, "routing": "uniform", "dtype": "float32"},
    "attention": MASKED,
    "rotary_embedding": {
        "tokens": 9, "heads": 4, "kv_heads": 2, "head_dim": 16, "rotary_dim": 16, "style": "neox", "dtype": "float32",
    },
}  # fmt: skip
OPS: dict[str, Op] = {name: getattr(contracts, name.upper()) for name in SMALL}
REFUSED = {
    "first_size": "split",
    "three_dims": "split-apart",
    "length": "split",
    "converts": "float16 x",
    "converts_first": "float16 y",
    "same_address": "overlapping",
    "offset": "plain transposed",
    "fills": "plain split transposed",
    "first_or_last": "dim-middle",
    "negative": "dim-middle",
    "int64": "integers of the other width",
    "padding": "absent padding_idx",
    "slots64": "integers of the other width",
    "padded_tokens": "padded",
    "scalar_scale": "scalar k_scale",
    "offsets32": "integers of the other width",
    "scale": "absent scale",
    "scale_or": "zero scale",
    "eps_or": "zero eps",
    "keys_are_values": "overlapping",
    "heads": "heads-apart",
}
"""The form in which each is wrong."""
RIGHT = ("norm", "add", "softmax", "embedding", "append", "grouped", "attention", "rotary")
REPEATED = ("converts_first", "slots64", "keys_are_values")
"""Those that do what another does, in another way."""


@pytest.fixture(scope="module")
def plugin() -> Catalog:
    catalog = Catalog()
    catalog.load_file(Path(__file__).with_name("cheats_at_other_forms.py"))
    return catalog


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    problems = [OPS[name].problem_of(dims) for name, dims in SMALL.items()]
    return CheatingRun("cheats_at_other_forms.py", "form", problems, tmp_path_factory.mktemp("other_forms"))


@THOROUGH
@pytest.mark.parametrize("name", REFUSED)
def test_the_tuner_refuses_whoever_is_wrong_for_another_form(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    assert trial.status in {"wrong_result", "error"}, trial.message
    assert f"with {REFUSED[name]} inputs" in trial.message


@THOROUGH
def test_the_tuner_accepts_their_honest_peers_which_win(run: CheatingRun) -> None:
    assert {name: run.trials[name].message for name in RIGHT} == dict.fromkeys(RIGHT, "")
    assert {*run.winners.values()} <= {*RIGHT}
    assert run.offered == run.trials.keys() == {*REFUSED, *RIGHT}


@pytest.mark.parametrize("name", each_of([*REFUSED, *RIGHT], REPEATED))
@pytest.mark.few(14)
def test_the_public_check_tells_them_apart(plugin: Catalog, name: str) -> None:
    found = [one for op in OPS for one in plugin.implementations(op) if one.name == f"form.{name}"]
    (implementation,) = found
    op = OPS[implementation.op]
    if name in RIGHT:
        assert check_implementation(implementation, op, problems=[SMALL[op.name]]).ok
        return
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, op, problems=[SMALL[op.name]])
    assert f"contiguous {REFUSED[name]} inputs: " in str(raised.value)
