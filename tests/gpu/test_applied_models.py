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


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
# Inductor captures nothing first, to have memory for its graphs
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("batch", [1, 16])
def test_compiled_steps_in_cuda_graphs_are_as_exact_as_the_plain_models(family: str, batch: int) -> None:
    """Each step rotates and appends in one launch a layer, and adds together with the next norm."""
    tokens, found, caches = prompt(batch).cuda(), [], []
    for dtype, applied in ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        model = tiny(family, torch.bfloat16).to(dtype).cuda()
        step = model
        if applied:
            apply(model)
            step = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        given = {cache_name(model): cache}
        with torch.no_grad():
            model(tokens, **given)
            logits = [step(tokens[:, at : at + 1], **given).logits.double().clone() for at in range(6)]
        found.append(torch.cat(logits, 1))
        caches.append(cache.layers[1])
    right, own, other = found
    assert (other - right).abs().max() < 2 * (own - right).abs().max() + 1e-2
    assert int(caches[2].cumulative_length) == int(caches[0].cumulative_length) == tokens.shape[1] + 6
    for part in ("keys", "values"):
        exact, plain, last = (getattr(cache, part).double() for cache in caches)
        assert (last - exact).abs().max() < 2 * (plain - exact).abs().max() + 1e-2


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_a_training_step_is_as_exact_as_the_plain_models_with_half_the_memory_for_logits(form: str) -> None:
    """Of 2048 tokens and 65536 classes: the logits take 256 MiB in bfloat16."""
    sizes = {"vocab_size": 65536, "num_hidden_layers": 1, "max_position_embeddings": 1024}
    tokens = torch.randint(3, 65536, (2, 1024), generator=torch.Generator().manual_seed(1)).cuda()
    gradients, losses, peaks = [], [], []
    for dtype, applied in ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        model = tiny("llama", torch.bfloat16, **sizes).to(dtype).cuda().train()
        forward = model
        if applied:
            assert "loss without logits in training" in apply(model).replaced
            forward = torch.compile(model, dynamic=False) if form == "compiled" else model
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            outputs = forward(tokens, labels=tokens, use_cache=False)
            outputs.loss.backward()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - held
        assert (outputs.logits is None) is applied
        losses.append(outputs.loss.item())
        peaks.append(peak)
        gradients.append([one.grad.double() for one in model.parameters()])
        del outputs
    right, own, other = gradients
    assert losses[2] == pytest.approx(losses[0], abs=2 * abs(losses[1] - losses[0]) + 2e-3)
    for exact, plain, found in zip(right, own, other, strict=True):
        assert (found - exact).norm() < 2 * (plain - exact).norm() + 1e-2 * exact.norm()
    assert peaks[2] < peaks[1] / 2
