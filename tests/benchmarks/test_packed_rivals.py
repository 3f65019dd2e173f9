"""Rivals of products with packed weights: what the dense one computes, and Humming's configs of a problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks
import registry
from benchmarks.racing import packed, peers
from registry.problem import Value
from registry.tuner.shapes.shapes import read_shapes

SHAPES = Path(benchmarks.__file__).parent / "shapes"
FORMS: list[tuple[str, dict[str, Value]]] = [
    ("gemm_int4", {"bits": 4, "symmetric": False}),
    ("gemm_int8", {"zeros": "none", "act_order": False, "bias": False}),
    ("gemm_int2", {"zeros": "integer", "act_order": False, "bias": False}),
    ("gemm_int1", {"zeros": "none", "act_order": False, "bias": False}),
    ("gemm_w4a8", {"zeros": "none", "act_order": False, "bias": False, "activation": "int8", "static": False}),
    ("gemm_w8a8", {"zeros": "none", "act_order": False, "bias": False, "activation": "float8_e4m3fn", "static": False}),
]


def problem_of(op: str, dims: dict[str, Value], group_size: int = 64) -> registry.Problem:
    sizes: dict[str, Value] = {"m": 3, "n": 128, "k": 256, "group_size": group_size, "dtype": "bfloat16"}
    return registry.ops()[op].problem_of({**sizes, **dims})


@pytest.mark.parametrize(("op", "dims"), FORMS, ids=[op for op, _ in FORMS])
def test_the_dense_rival_computes_what_the_op_does(op: str, dims: dict[str, Value]) -> None:
    contract, problem = registry.ops()[op], problem_of(op, dims)
    call = packed.dense(problem, ())
    for seed in (0, 1):  # each copy of a weight has a dense one of its own
        values = contract.draw(problem, "normal", torch.Generator().manual_seed(seed))
        expected: Any = contract.reference(*values)
        torch.testing.assert_close(call(*values).float(), expected.float(), rtol=2e-2, atol=5e-2)


def test_the_dense_rival_of_a_sparse_product_computes_what_it_does() -> None:
    contract = registry.ops()["gemm_sparse24"]
    problem = contract.problem_of({"m": 3, "n": 32, "k": 64, "bias": True, "dtype": "float32"})
    values = contract.draw(problem, "normal", torch.Generator().manual_seed(0))
    torch.testing.assert_close(packed.dense_of_sparse(problem, ())(*values), contract.reference(*values))


def test_hummings_configs_say_bits_groups_zero_points_and_activations() -> None:
    configs = {op: packed.configs_of(problem_of(op, dims)) for op, dims in FORMS}
    zero = {"has_zero_point": False, "is_fp_zero_point": False}
    assert configs["gemm_int8"] == {"weight_config": {"dtype": "int8", "group_size": 64, **zero}}
    assert configs["gemm_int4"]["weight_config"]["has_zero_point"]
    assert configs["gemm_int1"]["weight_config"]["is_fp_zero_point"]
    assert configs["gemm_w4a8"]["input_config"] == {"dtype": "int8", "quant_mode": "dynamic_token"}
    assert configs["gemm_w8a8"]["input_config"]["dtype"] == "float8e4m3"
    whole = problem_of("gemm_int8", dict(FORMS[1][1]), group_size=256)
    assert packed.configs_of(whole)["weight_config"]["group_size"] == 0
    with pytest.raises(ValueError, match="zero points or one scale"):
        packed.configs_of(problem_of("gemm_w4a8", {**FORMS[4][1], "zeros": "integer"}))


@pytest.mark.parametrize("name", ["low_bit", "linear_layers", "int4"])
def test_every_problem_of_the_files_is_one_of_an_op_that_is_raced(name: str) -> None:
    problems = read_shapes(SHAPES / f"{name}.yaml", registry.api.dispatcher.catalog).all
    assert len(problems) > 20
    packed_ones = {problem.op for problem in problems} - {"linear", "scaled_mm"}
    assert packed_ones <= peers._PEERS.keys()
    for problem in problems:
        if problem.op in {op for op, _ in FORMS}:
            assert packed.configs_of(problem)["weight_config"]["group_size"] in (0, 64, 128)
