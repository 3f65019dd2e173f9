"""Groups of problems that share compiled variants, also where their static dimensions differ."""

from __future__ import annotations

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.fleet.grouping import device_named, grouped, variants_of_defaults
from registry.problem import Problem
from tuning_db.queue.entries import QueuedProblem

COLS = (100, 200, 300, 400)


def softmax(rows: int, cols: int) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})


def of_cols(groups: list[list[QueuedProblem]]) -> list[list[object]]:
    return [[one.dims["cols"] for one in group] for group in groups]


def test_a_group_takes_those_that_share_most_with_it(catalog: Catalog) -> None:
    problems = [softmax(1, cols) for cols in COLS]
    keys = dict(zip(problems, map(frozenset, ("ab", "a", "bc", "x")), strict=True))
    assert of_cols(grouped(problems, {}, catalog, 8, keys)) == [[100, 200, 300], [400]]
    assert of_cols(grouped(problems, {}, catalog, 2, keys)) == [[100, 200], [300], [400]]
    keys[problems[2]] = frozenset("abc")
    assert of_cols(grouped(problems, {}, catalog, 2, keys)) == [[100, 300], [200], [400]]
    assert of_cols(grouped(problems, {}, catalog, 8)) == [[100], [200], [300], [400]]
    assert of_cols(grouped(problems, {}, catalog, 8, {})) == [[100], [200], [300], [400]]


def test_problems_of_equal_static_dimensions_stay_together(catalog: Catalog) -> None:
    problems = [softmax(rows, cols) for cols in COLS[:2] for rows in (1, 2, 3)]
    shared = dict.fromkeys(problems, frozenset("a"))
    assert of_cols(grouped(problems, {}, catalog, 5, shared)) == [[100] * 3, [200] * 3]
    assert of_cols(grouped(problems, {problems[4]: 7}, catalog, 6, shared)) == [[100] * 3 + [200] * 3]
    assert grouped(problems, {problems[4]: 7}, catalog, 6, shared)[0][4].count == 7


def test_problems_of_two_ops_share_nothing(catalog: Catalog) -> None:
    one, other = softmax(1, 100), Problem("square", {"n": 4, "dtype": "float32"})
    groups = grouped([one, other], {}, catalog, 8, dict.fromkeys((one, other), frozenset("a")))
    assert [[each.op for each in group] for group in groups] == [["softmax"], ["square"]]


def test_variants_are_told_for_a_gpu_that_is_not_here(catalog: Catalog) -> None:
    device = device_named("NVIDIA H200")
    assert device is not None
    near, far = softmax(4096, 4096), softmax(8192, 4096)
    found = variants_of_defaults([near, far], catalog, device, ["triton.row", "torch.native"])
    assert found[near]
    assert found[near] == found[far], "the number of rows is in no variant"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("NVIDIA H100 80GB HBM3", "sm_90"), ("NVIDIA L40S", "sm_89"), ("NVIDIA A100-SXM4-80GB", "sm_80"),
     ("NVIDIA GeForce RTX 5090", "sm_120")],
)  # fmt: skip
def test_the_architecture_of_a_model_follows_from_its_name(name: str, architecture: str) -> None:
    found = device_named(name)
    assert found is not None
    assert found.architecture == architecture


def test_of_an_unknown_model_nothing_is_told() -> None:
    assert device_named("Voodoo 3") is None
    assert device_named("cpu") == Device.of("cpu")
