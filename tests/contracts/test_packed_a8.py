"""W4A8 and W8A8: quantised activations give what they stand for, mutants are refused, and what is no call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import registry
from registry.contract import Op
from registry.contracts import GEMM_W4A8, GEMM_W8A8, QUANTIZE_PER_TOKEN
from registry.correctness.numerics import judged
from registry.errors import ArgumentTypeError, InvalidArgumentError
from registry.problem import Value

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

Tensor = torch.Tensor
OPS = {4: GEMM_W4A8, 8: GEMM_W8A8}
A8 = pytest.mark.parametrize("activation", ["int8", "float8_e4m3fn"])
BITS = pytest.mark.parametrize("bits", OPS)
SHAPE: Mapping[str, Value] = {"m": 5, "n": 24, "k": 1000, "group_size": 128, "act_order": False, "dtype": "bfloat16"}


@A8
@BITS
def test_it_multiplies_what_the_levels_stand_for(bits: int, activation: str) -> None:
    w = registry.quantize(torch.randn(40, 256), bits=bits, group_size=64)
    bias, scale = torch.randn(40), torch.tensor([0.01])
    for x in (torch.randn(3, 256), torch.randn(2, 3, 256), torch.randn(256)):
        for given in (None, scale):
            a, scale_a = QUANTIZE_PER_TOKEN.reference(x, activation, 0, given)
            values = OPS[bits].bind((a, scale_a, w, bias), {})
            expected = (a.double() * scale_a.double()) @ w.dequantize().double().T + bias
            torch.testing.assert_close(OPS[bits].reference(*values), expected.float(), rtol=1e-4, atol=1e-4)


Mutant = Callable[[dict[str, Any]], Mapping[str, Any]]
MUTANTS: dict[str, Mutant] = {
    "last k left out": lambda named: {"a": named["a"] * (torch.arange(named["k"]) < named["k"] - 1)},
    "scales of the next token": lambda named: {"scale_a": named["scale_a"].roll(1, 0)},
    "scales of the first token": lambda named: {"scale_a": named["scale_a"][:1]},
    "activations unscaled": lambda named: {"scale_a": torch.ones_like(named["scale_a"])},
    "scales of the next group": lambda named: {"scales": named["scales"].roll(1, 0)},
    "zero points off by one": lambda named: {"zeros": named["zeros"] + 1},
    "bias ignored": lambda named: {"bias": None},
}


def computed(op: Op, values: tuple[Any, ...], mutant: Mutant | None) -> Any:
    named = dict(zip(op.parsed.names, values, strict=True))
    if mutant is not None:
        named |= mutant({**named, "a": named["a"].float()})
    return op.reference(*named.values())


@A8
@BITS
@pytest.mark.parametrize("name", [None, *MUTANTS])
@pytest.mark.few(16)
def test_a_mutant_is_refused_by_some_kind(bits: int, activation: str, name: str | None) -> None:
    op = OPS[bits]
    problem = op.problem_of({**SHAPE, "activation": activation, "static": False, "zeros": "integer", "bias": True})
    found = []
    for kind in op.kinds:
        values = op.bind(op.draw(problem, kind, torch.Generator().manual_seed(3)), {})
        found.append(judged(op, problem, computed(op, values, MUTANTS[name] if name else None), values).ok)
    assert all(found) == (name is None), found


A, SCALE = torch.ones(3, 256, dtype=torch.int8), torch.ones(3, 1)
W = registry.quantize(torch.ones(64, 256), group_size=64)
ORDERED = registry.PackedWeight(
    W.qweight, W.scales, W.zeros, 4, 64, (64, 256), g_idx=torch.arange(256, dtype=torch.int32).flip(0) // 64
)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((A.float(), SCALE, W), r"a is float32, expected int8 or float8_e4m3fn\n  .*quantize_per_token"),
        ((A[:, :255], SCALE, W), "a has shape 3x255 but w has K=256"),
        ((A, SCALE[:2], W), r"scale_a is float32 of shape 2x1\n  expected float32 of shape \[3, 1\]"),
        ((A, SCALE.half(), W), "scale_a is float16 of shape 3x1"),
        ((A, SCALE, W, torch.ones(63)), r"bias is float32 of shape 63\n  expected float32 of shape \[64\]"),
        ((A, SCALE, W, torch.ones(64).half()), "bias is float16 of shape 64"),
        ((A, SCALE, ORDERED), r"w has act-order \(g_idx\)"),
        ((A, SCALE, registry.quantize(torch.ones(64, 256), bits=8)), "w has 8 bits"),
    ],
)
def test_a_call_that_is_not_accepted_says_why(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        GEMM_W4A8.pose(GEMM_W4A8.arguments(GEMM_W4A8.bind(args, {})))


@pytest.mark.parametrize(
    ("args", "message"),
    [((A, W), "got a, scale_a"), ((A, SCALE, torch.ones(64, 256)), "w is a Tensor, expected a PackedWeight")],
)
def test_a_call_of_another_form_says_why(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        GEMM_W4A8.bind(args, {})
