"""Ops of the box in compiled programs: packed weights, several outputs, arguments that are written to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import registry

from .winners import generated

pytestmark = pytest.mark.thorough
close = torch.testing.assert_close

OPS = (
    *("cross_entropy", "embedding", "fused_add_rms_norm", "kv_cache_append", "quantize_per_token", "rotary_embedding"),
    *("rotary_kv_append", "apply_rotary"),
)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def same(program: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    """Compile and call a program, compare outputs and arguments with those of a plain call; return the code."""
    compiled = torch.compile(program, fullgraph=True)
    code: list[str] = []
    for turn in range(3):
        mine, plain = copy.deepcopy(args), copy.deepcopy(args)
        outputs, code = generated(compiled, *mine) if turn == 0 else (compiled(*mine), code)
        close(outputs, program(*plain))
        close(mine, plain)
    return code


@pytest.mark.parametrize("name", OPS)
def test_an_op_by_its_first_example(name: str) -> None:
    op = registry.ops()[name]
    values = op.inputs(op.problem_of(dict(op.examples[0])), op.kinds[0], torch.Generator().manual_seed(0))

    def program(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        outputs = registry.call(name, *[next(given) if isinstance(one, torch.Tensor) else one for one in values])
        return [one * 1 for one in tensors] if outputs is None else outputs

    (code,) = same(program, *[one for one in values if isinstance(one, torch.Tensor)])
    assert f"call_site('{name}')" in code


def test_a_packed_weight_in_a_closure() -> None:
    weight = registry.quantize(torch.randn(64, 128).bfloat16(), bits=4, group_size=32)
    (code,) = same(lambda a: registry.call("gemm_int4", a, weight) * 2, torch.randn(3, 128).bfloat16())
    assert "call_site('gemm_int4')" in code


def test_one_of_several_outputs() -> None:
    (code,) = same(lambda q: registry.call("attention", q, q, q, causal=True)[0] + 1, torch.randn(1, 8, 2, 16))
    assert "call_site('attention')" in code


def test_a_view_of_an_intermediate_that_is_written_to() -> None:
    def program(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x + 1
        registry.call("fused_add_rms_norm", x[:2], residual.view(2, 8), weight)
        return x

    same(program, torch.randn(4, 8), torch.randn(1, 16), torch.ones(8))


def test_unaligned_columns_and_an_argument_given_twice() -> None:
    same(lambda x: registry.call("softmax", (x * 2)[:, 1:5]) + 1, torch.randn(4, 7))
    same(lambda x: registry.call("vector_add", x, x), torch.randn(4, 8))


def test_a_branch_of_a_graph_keeps_the_operator() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda t: registry.call("softmax", t), lambda t: t * 2, (x,))

    for sign in (1, -1):
        same(program, sign * torch.rand(4, 8))
