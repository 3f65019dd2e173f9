"""Inputs of gemm_int4 and its gradient: outputs of about 1, and groups of which none can be taken for its neighbour."""

from __future__ import annotations

import pytest
import torch

from registry.contract import Op
from registry.contracts.gemm_int4 import GEMM_INT4, GEMM_INT4_BACKWARD
from registry.packed import PackedWeight

OPS = {op.name: op for op in (GEMM_INT4, GEMM_INT4_BACKWARD)}
DIMS = {"m": 16, "n": 256, "k": 512, "group_size": 128, "bits": 4, "dtype": "bfloat16", "symmetric": False}


def drawn(op: Op, kind: str) -> tuple[torch.Tensor, PackedWeight]:
    """Activations, or the output's gradient, and the weight."""
    values = op.draw(op.problem_of(DIMS), kind, torch.Generator().manual_seed(0))
    like, qweight, scales, zeros, bits, group_size, k, _ = values
    return like, PackedWeight(qweight, scales, zeros, bits, group_size, (qweight.shape[1], k))


@pytest.mark.parametrize(("name", "summed"), [("gemm_int4", "k"), ("gemm_int4_backward", "n")])
def test_outputs_are_about_1_however_long_the_sum(name: str, summed: str) -> None:
    like, weight = drawn(OPS[name], "normal")
    assert like.shape == (DIMS["m"], DIMS[summed])
    wide = weight.dequantize().float()
    y = like.float() @ (wide.T if summed == "k" else wide)
    assert 0.5 < y.std() < 2


def test_a_neighbouring_groups_scale_is_wrong_by_a_factor() -> None:
    _, weight = drawn(OPS["gemm_int4"], "groups")
    typical = weight.scales.float().median(dim=1).values
    ratio = typical[1:] / typical[:-1]
    assert torch.maximum(ratio, 1 / ratio).min() > 2
    assert weight.zeros is not None
    assert (weight.zeros[1:] != weight.zeros[:-1]).float().mean() > 0.8


def test_constant_weights_are_not_zero() -> None:
    _, weight = drawn(OPS["gemm_int4"], "constant")
    assert weight.dequantize().unique().numel() == 1
    assert weight.dequantize().abs().min() > 0
