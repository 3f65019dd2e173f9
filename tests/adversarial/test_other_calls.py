"""Whoever is right for the call that is tuned, and wrong for others, is refused by tuner and public check.

The tuner refuses such for every change in test_from_a_size_on.py; a run of it with these is thorough.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.contracts import (
    ATTENTION,
    ATTENTION_DECODE,
    CROSS_ENTROPY,
    EMBEDDING,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    SOFTMAX,
    SQUARE,
    VECTOR_ADD,
)
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.implementation import Implementation
from registry.problem import Problem
from registry.testing import check_implementation

from ..tiers import THOROUGH
from .cheating_run import CheatingRun, each_of

OPS = (
    SQUARE, RMS_NORM, VECTOR_ADD, SOFTMAX, ATTENTION_DECODE, EMBEDDING, ATTENTION, CROSS_ENTROPY, RMS_NORM_BACKWARD,
)  # fmt: skip
CAPPED = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 72, "head_dim": 16, "page": False, "span": False,
    "softcap": True, "lengths": "full", "kv_dtype": "auto", "dtype": "float32",
}  # fmt: skip
TABLE = {"rows": 60, "cols": 16, "vocabulary": 100, "frequency": "uniform", "dtype": "float32"}
MASKED = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 12, "kv_len": 20, "head_dim": 16, "causal": False,
    "mask": "additive", "softcap": False, "span": False, "dtype": "float32",
}  # fmt: skip
LOSSES = {"rows": 40, "cols": 100, "reduction": "none", "weight": False, "dtype": "float32"}
PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("rms_norm", {"rows": 4, "cols": 300, "dtype": "float32"}),
    Problem("vector_add", {"n": 5_000, "dtype": "float32"}),
    Problem("softmax", {"rows": 12, "cols": 300, "dtype": "float32"}),
    ATTENTION_DECODE.problem_of(CAPPED),
    EMBEDDING.problem_of(TABLE),
    ATTENTION.problem_of(MASKED),
    CROSS_ENTROPY.problem_of(LOSSES),
    Problem("rms_norm_backward", {"rows": 6, "cols": 300, "dtype": "float32"}),
)
RIGHT = {
    "any_size": True,
    "scratch": True,
    "add": True,
    "softmax": False,
    "own_strides": False,
    "decode": True,
    "embedding": True,
    "attention": True,
    "loss": True,
    "gradients": True,
}
"""Honest implementations, and whether the op's winner is known: two of softmax are equally fast."""
FALSE = "says any_size = True, but the run that bind() returned for n={} is wrong for n={}"
REMEDY = "Take sizes and strides from the tensors that the run is given, or say any_size = False"
REFUSED = {
    "trained": "right here, but not for square(n=4099, dtype=float32)",
    "versions": " in inference-mode, where dispatch may run it: it raises RuntimeError: Inference tensors",
    "bound_size": FALSE.format(20_002, 60_006),
    "first_size": FALSE.format(20_002, 60_006),
    "smaller_size": FALSE.format(20_002, 1),
    "known_sizes": FALSE.partition("n={} is wrong")[0],
    "workspace": "called by two threads at once",
    "borrowed_input": "called by two threads at once",
    "sentinel": "called by two threads at once",
    "static": "called by two threads at once",
    "past_scratch": "it writes outside its scratch",
    "first_strides": "with strided-dense inputs",
    "second_strides": "with strided-dense inputs",
    "kept_strides": "with transposed inputs",
    "kept_rows": "inputs",
    "transposed": "with transposed inputs",
    "last_dim": "with dim-first inputs",
    "one_distance": "with sliced deeper inputs",
    "two_eps": "with renumbered inputs",
    "two_eps_here": "not in every call that dispatch may give to it",
    "usual_scale": "with renumbered inputs",
    "one_softcap": "with renumbered inputs",
    "padding": "0] is 0, expected ",
    "one_mask": "with per-head inputs",
    "two_ignored": "with renumbered inputs",
    "together": "alone inputs",
}
"""What the tuner says of each. The first probes, of sizes from 1 to 4099, tell another size of a false claim."""
FALSE_CLAIMS = {"known_sizes", "bound_size", "first_size", "smaller_size", "kept_strides", "kept_rows"}


def offered(catalog: Catalog) -> dict[str, Implementation]:
    found = [implementation for op in OPS for implementation in catalog.implementations(op.name)]
    return {one.name: one for one in found if one.name.startswith("other.")}


@pytest.fixture(scope="module")
def plugin() -> Catalog:
    catalog = Catalog()
    catalog.load_file(Path(__file__).with_name("cheats_at_other_calls.py"))
    return catalog


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    return CheatingRun("cheats_at_other_calls.py", "other", PROBLEMS, tmp_path_factory.mktemp("other_calls"))


@THOROUGH
@pytest.mark.parametrize("name", REFUSED)
def test_the_tuner_refuses_whoever_is_wrong_at_another_call(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    assert trial.status in {"wrong_result", "error"}, trial.message
    assert REFUSED[name] in trial.message
    assert ("any_size" in trial.message) == (name in FALSE_CLAIMS)
    assert REMEDY in trial.message or name not in FALSE_CLAIMS


@THOROUGH
@pytest.mark.parametrize("name", RIGHT)
def test_the_tuner_accepts_their_honest_peers_which_win(run: CheatingRun, name: str) -> None:
    trial = run.trials[name]
    assert trial.status == "ok", trial.message
    assert name in run.winners.values() or not RIGHT[name]


@THOROUGH
def test_none_of_them_wins(run: CheatingRun) -> None:
    # a busy machine may disturb finals, which then decide nothing
    assert {result.implementation.partition(".")[2] for result in run.results if not result.reason} <= RIGHT.keys()


@THOROUGH
def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() == {*REFUSED, *RIGHT}


SMALL = {
    "square": {"n": 1000, "dtype": "float32"},
    "rms_norm": {"rows": 4, "cols": 300, "dtype": "float32"},
    "vector_add": {"n": 1000, "dtype": "float32"},
    "softmax": {"rows": 12, "cols": 33, "dtype": "float32"},
    "attention_decode": CAPPED,
    "embedding": TABLE,
    "attention": MASKED,
    "cross_entropy": LOSSES,
    "rms_norm_backward": {"rows": 6, "cols": 300, "dtype": "float32"},
}
TOLD = {
    **{name: told for name, told in REFUSED.items() if name != "known_sizes"},
    "bound_size": FALSE.format(1000, 3000),
    "first_size": FALSE.format(1000, 3000),
    "smaller_size": FALSE.format(1000, 500),
    "trained": "in no-grad: y",
    "versions": "in inference-mode: ",
    "past_scratch": "it writes outside its scratch space",
    "first_strides": " strided-dense other.first_strides",
    "second_strides": " strided-dense other.second_strides",
    "kept_strides": " transposed after rows=12 other.kept_strides",
    "kept_rows": " after rows=12 other.kept_rows",
    "transposed": " transposed other.transposed",
    "last_dim": "contiguous dim-first inputs: y",
    "one_distance": "sliced deeper inputs: y",
    "one_mask": "contiguous per-head inputs: out",
    "two_ignored": "inputs with other numbers: loss",
    "together": "contiguous need_x alone inputs: grad_x",
    **dict.fromkeys(("two_eps", "two_eps_here"), "near_zero inputs with other numbers: y"),
    **dict.fromkeys(("usual_scale", "one_softcap"), "inputs with other numbers: "),
}


REPEATED = ("first_size", "borrowed_input", "static", "second_strides", "kept_rows")
"""Those that do what another does, in another way."""


@pytest.mark.parametrize("name", each_of([*TOLD, *RIGHT], REPEATED))
def test_the_public_check_tells_them_apart(plugin: Catalog, name: str) -> None:
    implementation = offered(plugin)[f"other.{name}"]
    op = next(op for op in OPS if op.name == implementation.op)
    if name in RIGHT:
        assert check_implementation(implementation, op, problems=[SMALL[op.name]]).ok
        return
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, op, problems=[SMALL[op.name]])
    assert TOLD[name] in str(raised.value)
