"""The masks of attention in models of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import masking_utils

from registry.integrations.transformers.attention import registry_mask


def test_a_causal_mask_is_none_also_where_transformers_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # as it does for a torch before 2.14 while torch.compile traces
    monkeypatch.setattr(masking_utils, "_ignore_causal_mask_sdpa", lambda *_, **__: False)
    assert registry_mask(2, 8, 8) is None
    assert registry_mask(2, 8, 8, allow_is_causal_skip=False) is not None
    assert registry_mask(2, 8, 9) is not None
    assert registry_mask(2, 8, 8, attention_mask=torch.tensor([[False] + [True] * 7] * 2)) is not None
