"""Lengths that all sequences share: kept from layer to layer, and not from a mode of torch to what follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers.forwards.full_lengths import full_lengths

pytestmark = pytest.mark.usefixtures("late_imports")


def test_lengths_are_kept_but_not_in_a_mode_whose_tensors_are_fake() -> None:
    cpu = torch.device("cpu")
    with FakeTensorMode():
        fake = full_lengths(3, 12345, cpu)
    real = full_lengths(3, 12345, cpu)
    assert (type(real), real.dtype, real.tolist()) == (torch.Tensor, torch.int32, [12345] * 3)
    assert type(fake) is not torch.Tensor
    assert full_lengths(3, 12345, cpu) is real
