"""Models on a GPU that kernelize has given the registry's layers: prompts, a CUDA graph, and a training step."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("transformers", minversion="5.22")
pytest.importorskip("kernels")

from ..integrations.hf_kernels.kernelized_models import called, kernelized, marked
from ..integrations.transformers.tiny_models import prompt


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_logits_are_as_exact_as_the_plain_models(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, tokens = marked(monkeypatch, family, torch.bfloat16).cuda(), prompt().cuda()
    with torch.no_grad():
        right = copy.deepcopy(model).double()(tokens).logits
        own = model(tokens).logits
        kernelized(model, "INFERENCE")
        calls = called(lambda: model(tokens), tmp_path)
        found = model(tokens).logits
    assert calls["gelu" if family == "gpt2" else "rms_norm"] > 0
    assert (found - right).abs().max() < 2 * (own - right).abs().max() + 1e-2


def test_a_prompt_is_captured_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = marked(monkeypatch, "llama", torch.bfloat16).cuda(), prompt().cuda()
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        kernelized(model, "INFERENCE")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(tokens, use_cache=False)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(tokens, use_cache=False).logits
        graph.replay()
    torch.testing.assert_close(captured, expected, atol=2e-2, rtol=2e-2)


def test_a_training_step_has_the_models_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = marked(monkeypatch, "llama").cuda().train(), prompt().cuda()
    plain = copy.deepcopy(model)
    plain(tokens, labels=tokens).loss.backward()
    kernelized(model, "TRAINING")
    model(tokens, labels=tokens).loss.backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)
