"""Specs of row-major tensors have torch's strides."""

from __future__ import annotations

import pytest
import torch

from registry import TensorSpec


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (0, 4), (4, 0), (2, 0, 3), (1, 1, 7), (6, 5, 4, 3)])
def test_a_row_major_spec_has_the_strides_of_a_new_tensor(shape: tuple[int, ...]) -> None:
    spec = TensorSpec.contiguous(shape, torch.float32)
    assert (spec.shape, spec.strides) == (shape, torch.empty(shape).stride())
