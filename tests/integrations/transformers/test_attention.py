"""The masks of attention in models of transformers, and attention with sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from .tiny_models import cache_name, prompt

if TYPE_CHECKING:  # see late_imports
    import transformers
    from transformers import masking_utils

    from registry.integrations.transformers import apply
    from registry.integrations.transformers.attention import registry_mask

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


def test_a_causal_mask_is_none_also_where_transformers_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # as it does for a torch before 2.14 while torch.compile traces
    monkeypatch.setattr(masking_utils, "_ignore_causal_mask_sdpa", lambda *_, **__: False)
    assert registry_mask(2, 8, 8) is None
    assert registry_mask(2, 8, 8, allow_is_causal_skip=False) is not None
    assert registry_mask(2, 8, 9) is not None
    assert registry_mask(2, 8, 8, attention_mask=torch.tensor([[False] + [True] * 7] * 2)) is not None


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.few(1)
def test_sinks_are_in_the_sum_of_attention(static: bool, padded: bool) -> None:
    config = transformers.GptOssConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        pad_token_id=0,
    )  # fmt: skip
    found = []
    for applied in (False, True):
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        for layer in model.model.layers:
            layer.self_attn.sinks.data.normal_()
        if applied:
            apply(model)
        kind = transformers.StaticCache if static else transformers.DynamicCache
        given = {cache_name(model): kind(config=config, **({"max_cache_len": 32} if static else {}))}
        mask = torch.ones(2, 16, dtype=torch.int64)
        mask[0, :4] = 0
        logits, begin = [], 0
        with torch.no_grad():
            for new in (11, 1, 3, 1):
                how = {"attention_mask": mask[:, : begin + new]} if padded else {}
                logits.append(model(prompt()[:, :new], **given, **how).logits[:, 4 if padded and not begin else 0 :])
                begin += new
        found.append(torch.cat(logits, 1))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)
