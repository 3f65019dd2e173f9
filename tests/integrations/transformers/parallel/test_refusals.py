"""What cannot be packed in a tensor-parallel plan is refused by name: old releases, one group of shared columns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from registry.errors import InvalidArgumentError

from ..tiny_models import tiny


def test_a_plan_of_a_release_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from registry.integrations.transformers import apply
    from registry.integrations.transformers.parallel import styles

    model: Any = tiny("llama")
    model._tp_size = 2
    monkeypatch.setattr(styles, "_STYLES", ())
    with pytest.raises(
        InvalidArgumentError, match=r"among ranks in a way that is not known\n.*takes transformers 5\.22"
    ):
        apply(model, quantize="int4")
    model._tp_size = None
    assert "packed" in str(apply(model, quantize="int4"))


def test_one_group_for_the_columns_of_experts_that_ranks_share_is_refused() -> None:
    from registry.integrations.transformers import RegistryConfig
    from registry.integrations.transformers.quantization.packing import _shared_size

    experts: Any = torch.nn.Module()
    experts.down_proj = torch.nn.Parameter(torch.zeros(2, 64, 128))
    mesh = SimpleNamespace(size=lambda: 2)
    with pytest.raises(InvalidArgumentError, match=r"one group for all columns is not packed\n.*divides 64"):
        _shared_size(experts, RegistryConfig(bits=4, group_size=-1), mesh)
    assert _shared_size(experts, RegistryConfig(bits=4, group_size=128), mesh).group_size == 64
