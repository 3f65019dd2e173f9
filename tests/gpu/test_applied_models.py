"""Applied models on a GPU: decode steps over a StaticCache, eager and from a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("transformers", minversion="5")

import transformers

from registry.integrations.transformers import apply

from ..integrations.transformers.tiny_models import cache_name, prompt, tiny


def _filled(model: Any) -> dict[str, Any]:
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    given = {cache_name(model): cache}
    model(prompt().cuda(), **given)
    return given


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_step_over_a_static_cache_is_as_exact_as_the_plain_models(family: str) -> None:
    tokens, found = prompt()[:, :1].cuda(), []
    for dtype, applied in ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        # the weights of all three are the same bfloat16 numbers
        model = tiny(family, torch.bfloat16).to(dtype).cuda()
        if applied:
            apply(model)
        with torch.no_grad():
            found.append(model(tokens, **_filled(model)).logits.double())
    right, own, other = found
    assert (other - right).abs().max() < 2 * (own - right).abs().max() + 1e-2


def test_a_step_is_captured_and_replayed() -> None:
    model = tiny("llama", torch.bfloat16).cuda()
    apply(model)
    tokens = prompt()[:, :1].cuda()
    with torch.no_grad():
        given, same = _filled(model), _filled(model)
        expected = [model(tokens, **same).logits.clone() for _ in range(4)][3]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(tokens, **given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(tokens, **given).logits
        graph.replay()
    torch.testing.assert_close(captured, expected, atol=2e-2, rtol=2e-2)
