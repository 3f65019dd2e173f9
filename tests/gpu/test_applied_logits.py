"""Logits of applied models on a GPU: in bfloat16 they err no more than the plain models', of each kind of weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("transformers", minversion="5")

from ..integrations.transformers.test_logits import CELLS, errors


@pytest.mark.parametrize(("family", "mode"), CELLS)
def test_logits_err_no_more_than_the_plain_models_of_the_same_weights(family: str, mode: Any) -> None:
    own, other = errors(family, mode, "cuda")
    assert other < 2 * own + 2e-3
    assert own < 0.2
