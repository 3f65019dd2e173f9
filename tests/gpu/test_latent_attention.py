"""Decode steps of DeepSeek-V3's attention by mla_decode on a GPU: eager, of padded sequences, and from a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("transformers", minversion="5")

import transformers

from registry.integrations.transformers import apply

from ..integrations.transformers.forwards.latents.decoding import PART, decoded, filled, steps
from ..integrations.transformers.tiny_models import cache_name, tiny

TOKENS, ROOM = 300, 512


def model_of(heads: int, dtype: torch.dtype, *, applied: bool) -> Any:
    """A model of one dense layer with DeepSeek-V3's widths of attention; of every dtype the same bfloat16 weights."""
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1, "first_k_dense_replace": 1}
    latents = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    counts = {"num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": 128}
    model = tiny("deepseek_v3", torch.bfloat16, **sizes, **latents, **counts, max_position_embeddings=ROOM)
    model = model.to(dtype).cuda()
    if applied:
        assert any(part.startswith(PART) for part in apply(model).replaced)
    return model


def tokens() -> torch.Tensor:
    return torch.randint(3, 96, (2, TOKENS), generator=torch.Generator().manual_seed(5)).cuda()


def cache_of(model: Any, mask: torch.Tensor | None = None) -> Any:
    return filled(model, transformers.StaticCache(config=model.config, max_cache_len=ROOM), mask, tokens())


def as_exact(found: list[torch.Tensor]) -> None:
    """The third logits err no more than the second, against the first."""
    right, own, other = (each.double() for each in found)
    assert (other - right).norm() < 1.5 * (own - right).norm() + 1e-4 * right.norm()


KINDS = ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("heads", [16, 128])
def test_steps_are_as_exact_as_the_plain_models(heads: int, padded: bool) -> None:
    found = []
    for dtype, applied in KINDS:
        model, mask = model_of(heads, dtype, applied=applied), None
        if padded:
            mask = torch.ones(2, TOKENS, dtype=torch.long, device="cuda")
            mask[0, :100] = 0
        cache = cache_of(model, mask)
        with decoded() as calls:
            found.append(steps(model, cache, mask, count=4, device="cuda"))
        assert len(calls) == (4 if applied else 0)
    as_exact(found)


@pytest.mark.parametrize("heads", [16, 128])
def test_a_step_is_captured_and_replayed(heads: int) -> None:
    token, found = tokens()[:, :1], []
    for dtype, applied in KINDS:
        model = model_of(heads, dtype, applied=applied)
        given = {cache_name(model): cache_of(model)}
        with torch.no_grad():
            if not applied:
                found.append([model(token, **given).logits for _ in range(5)][4])
                continue
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    model(token, **given)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = model(token, **given).logits
            for _ in range(2):
                graph.replay()
            found.append(captured)
    as_exact(found)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
# Inductor captures nothing first, to have memory for its graphs
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
def test_compiled_steps_in_cuda_graphs_are_as_exact_as_the_plain_models() -> None:
    found = []
    for dtype, applied in KINDS:
        model = model_of(16, dtype, applied=applied)
        step = torch.compile(model, fullgraph=True, mode="reduce-overhead") if applied else model
        cache = cache_of(model)
        with torch.no_grad():
            given = {cache_name(model): cache}
            found.append(torch.cat([step(tokens()[:, at : at + 1], **given).logits.clone() for at in range(5)], 1))
    as_exact(found)
