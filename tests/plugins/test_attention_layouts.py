"""What torch's attention operators are given: strides of lone dimensions, and a scale of 0."""

from __future__ import annotations

import math

import pytest
import torch

from registry_torch.attention import aten
from registry_torch.attention.gradient_layouts import with_dense_lone_strides


def call_of(q: torch.Tensor) -> aten.GradientCall:
    lse = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
    return aten.GradientCall(q, q, q, q, None, q, lse, True, None, 0.0, -1, True, True, True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (2, 1, 3, 8), (1, 5, 1, 8)])
def test_dimensions_of_one_element_get_the_stride_of_a_row_major_tensor(shape: tuple[int, ...]) -> None:
    whole = torch.randn(*shape[:-1], shape[-1] + 3)
    # as slices of wider tensors have it: any stride is right where it leads nowhere
    strides = [13 if size == 1 else stride for size, stride in zip(shape, whole.stride(), strict=True)]
    q = whole.as_strided(shape, strides)
    found = with_dense_lone_strides(call_of(q))
    for one in (*found.heads, found.out):
        assert torch.equal(one, q)
        assert one.data_ptr() == q.data_ptr()
        for size, stride, before in zip(shape, one.stride(), strides, strict=True):
            assert stride % 8 == 0 or stride == 1 if size == 1 else stride == before


def test_a_scale_of_zero_keeps_hidden_logits_hidden() -> None:
    scale = aten.nonzero(0.0)
    assert scale is not None
    hidden, seen = torch.tensor([-math.inf, 1e4], dtype=torch.float32) * scale
    assert hidden == -math.inf
    assert torch.exp(seen) == 1.0
    assert [aten.nonzero(one) for one in (None, 0.25, -2.0)] == [None, 0.25, -2.0]
