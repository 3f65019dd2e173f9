"""Outputs are plain tensors of their own, and nothing but weights is prepared: all else is refused, with the reason."""

from __future__ import annotations

import pytest

from registry.contracts import RMS_NORM, SQUARE
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.problem import Problem
from registry.testing import check_implementation

from .cheating_run import CheatingRun, each_of, left_out

PROBLEMS = (
    Problem("square", {"n": 20_002, "dtype": "float32"}),
    Problem("rms_norm", {"rows": 4, "cols": 4096, "dtype": "bfloat16"}),
)
RIGHT = ("honest", "norm")
REFUSED = {
    "lazy": ("wrong_result", "y is a LazySquare, expected a plain torch.Tensor"),
    "lazy_later": ("wrong_result", "is a LazySquare, expected a plain torch.Tensor"),
    "lazy_middle": ("wrong_result", "is a LazySquare, expected a plain torch.Tensor"),
    "subclass": ("wrong_result", "y is a LooksPlain, expected a plain torch.Tensor"),
    "functional": ("wrong_result", "torch treats it as Functionalize"),
    "negation": ("wrong_result", "torch treats it as Negative"),
    "lazy_copy": ("wrong_result", "is a lazy copy, which shares memory with another tensor"),
    "patched": ("wrong_result", "an attribute detach that hides torch.Tensor's"),
    "sparse": ("wrong_result", "the layout torch.sparse_coo"),
    "mkldnn": ("wrong_result", "the layout torch._mkldnn"),
    "input_at_first": ("wrong_result", "it changes its input x"),
    "view_at_first": ("wrong_result", "y shares memory with an argument"),
    "points": ("wrong_result", "a sample left a wrong output"),
    "points_output": ("wrong_result", "a sample left a wrong output"),
    "hidden_method": ("wrong_result", "a sample left a wrong output"),
    "prepared": ("error", "prepares 'squares' from 'x', which is no weight of the op"),
    "prepared_beside": ("error", "prepares 'wide' from 'x', which is no weight of the op"),
    "kept": ("wrong_result", "it changes a tensor that prepare() made"),
}
AS_TIMED = ("points", "points_output", "hidden_method")
"""Those of ``REFUSED`` that are wrong in samples alone."""
REPEATED = ("lazy_middle", "negation", "mkldnn", "view_at_first", "prepared_beside", "hidden_method")
"""Those that do what another does, in another way."""


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheatingRun:
    folder, without = tmp_path_factory.mktemp("returns"), left_out(request, REPEATED)
    return CheatingRun("cheats_that_return.py", "return", PROBLEMS, folder, left_out=without)


@pytest.fixture(scope="module")
def plugin() -> Catalog:
    catalog = Catalog()
    catalog.load_file(__file__.replace("test_returns", "cheats_that_return"))
    return catalog


@pytest.mark.parametrize("name", each_of(REFUSED, REPEATED))
def test_whoever_returns_or_prepares_something_else_is_refused(run: CheatingRun, name: str) -> None:
    status, words = REFUSED[name]
    if name in AS_TIMED and run.was_given_up(name):
        assert name not in run.winners.values()
        return
    assert run.trials[name].status == status, run.trials[name].message
    # a busy machine may take too few samples for one to be judged; a sum of inputs does not tell their order
    others = ("a sample left a wrong output", "after timing, ") if name in (*AS_TIMED, "kept") else ()
    assert any(each in run.trials[name].message for each in (words, *others)), run.trials[name].message


def test_the_honest_are_accepted_and_win(run: CheatingRun) -> None:
    assert [run.trials[name].message for name in RIGHT if run.trials[name].status != "ok"] == []
    assert run.winners == {"square": "honest", "rms_norm": "norm"}


def test_all_of_them_were_tried(run: CheatingRun) -> None:
    assert run.offered == run.trials.keys() | run.left_out == {*REFUSED, *RIGHT}


# these do what they should when they are called for the first few times
LATER = {"lazy_later", "lazy_middle", *AS_TIMED}


@pytest.mark.parametrize("name", each_of([*(name for name in REFUSED if name not in LATER), *RIGHT], REPEATED))
def test_the_public_check_tells_them_apart(plugin: Catalog, name: str) -> None:
    op = next(op for op in (SQUARE, RMS_NORM) if f"return.{name}" in {o.name for o in plugin.implementations(op.name)})
    implementation = next(one for one in plugin.implementations(op.name) if one.name == f"return.{name}")
    dims = {"n": 1000, "dtype": "float32"} if op is SQUARE else {"rows": 4, "cols": 300, "dtype": "bfloat16"}
    if name in RIGHT:
        assert check_implementation(implementation, op, problems=[dims]).ok
        return
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, op, problems=[dims])
    # whose output is its input is told that first
    words = "y shares memory with an argument" if name == "input_at_first" else REFUSED[name][1]
    assert words in str(raised.value)
