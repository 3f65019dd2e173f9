"""One new token over cached latents by mla_decode: logits and tokens of the plain models, of every cache and mask."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ...op_counts import OpCounts
from ...tiny_models import cache_name, prompt, tiny
from .decoding import FAMILIES, LAYERS, PART, WIDTH, decoded, dynamic, filled, padded, static, steps

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers import apply, restore

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

CACHES = {"static": static, "dynamic": dynamic}
close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def pair(family: str = "deepseek_v3", **changes: Any) -> tuple[Any, Any]:
    """A plain model and an applied one of the same weights."""
    plain, applied = tiny(family, **changes), tiny(family, **changes)
    apply(applied)
    return plain, applied


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.few(2)
def test_decode_steps_are_the_plain_models_and_call_the_op_once_a_layer(family: str) -> None:
    plain, applied = tiny(family), tiny(family)
    told = [part for part in apply(applied).replaced if part.startswith(PART)]
    assert told == [f"{PART} (caches hold {WIDTH} numbers a token, expanded {4 * (16 + 8 + 16)})"]
    for made in CACHES.values():
        for mask in (None, padded()):
            caches = [filled(model, made(model), mask) for model in (plain, applied)]
            right = steps(plain, caches[0], mask)
            with decoded() as calls:
                close(steps(applied, caches[1], mask), right)
            assert [table for _, table in calls] == [mask is not None] * 3 * LAYERS
            # what stands for padding sees nothing, and may be anything
            for own, other in zip(*(cache.layers for cache in caches), strict=True):
                close(other.keys[:, :, 4:], own.keys[:, :, 4:])
                close(other.values[:, :, 4:], own.values[:, :, 4:])
    restore(applied)
    with torch.no_grad():
        assert torch.equal(applied(prompt()).logits, plain(prompt()).logits)


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}])
@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static", "disable_compile": True}])
@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v2"])
@pytest.mark.few(3)
def test_generated_tokens_are_the_plain_models(family: str, cache: dict[str, Any], mode: dict[str, Any]) -> None:
    plain, applied = pair(family)
    for mask in (None, padded()):
        how = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask, **cache, **mode}
        right = plain.generate(prompt(), **how)
        with decoded() as calls:
            assert torch.equal(applied.generate(prompt(), **how), right)
        assert len(calls) == 5 * LAYERS


@pytest.mark.parametrize("made", CACHES.values(), ids=CACHES)
def test_a_static_cache_is_read_in_place_and_others_are_joined(made: Any) -> None:
    _, applied = pair()
    cache = filled(applied, made(applied))
    with decoded() as calls:
        steps(applied, cache)
    rows = [32] * 3 if made is static else [12, 13, 14]
    assert [shape for shape, _ in calls] == [(2, length, WIDTH) for length in rows for _ in range(LAYERS)]
    assert all(hasattr(layer, "rows") is (made is static) for layer in cache.layers)


def test_errors_in_bfloat16_are_no_larger_than_the_plain_models() -> None:
    found: list[torch.Tensor] = []
    for dtype, ours in ((torch.float64, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        # one layer without experts, to which a rounding would send a token
        model = tiny("deepseek_v3", torch.bfloat16, num_hidden_layers=1, kv_lora_rank=128, qk_nope_head_dim=32).to(
            dtype
        )
        if ours:
            apply(model)
        found.append(steps(model, filled(model, static(model)), count=8).double())
    right, own, other = found
    assert (other - right).norm() < 1.3 * (own - right).norm()


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize(
    ("family", "cache", "mask"),
    [
        ("deepseek_v3", "static", None),
        *(
            pytest.param(family, cache, mask, marks=pytest.mark.thorough)
            for family in ("deepseek_v3", "deepseek_v2")
            for cache in CACHES
            for mask in (None, padded())
        ),
    ],
)
def test_a_compiled_step_calls_the_op_once_a_layer(family: str, cache: str, mask: torch.Tensor | None) -> None:
    plain, applied = pair(family)
    counts, made = OpCounts(), CACHES[cache]
    right = steps(plain, filled(plain, made(plain), mask), mask)
    step = torch.compile(applied, fullgraph=True, backend=counts)
    close(steps(applied, filled(applied, made(applied), mask), mask, step=step), right)
    assert counts.graphs[0]["mla_decode"] == LAYERS


@pytest.mark.usefixtures("no_programs")
@pytest.mark.thorough
def test_a_program_of_inductor_computes_the_plain_models_logits() -> None:
    plain, applied = pair()
    right = steps(plain, filled(plain, static(plain), padded()), padded())
    step = torch.compile(applied, fullgraph=True)
    close(steps(applied, filled(applied, static(applied), padded()), padded(), step=step), right)


def test_a_prompt_in_pieces_and_masks_with_gaps() -> None:
    plain, applied = pair()
    gaps = torch.ones_like(prompt())
    gaps[0, [1, 4, 5]], gaps[1, [0, 8]] = 0, 0
    for made in CACHES.values():
        found = []
        for model in (plain, applied):
            cache = filled(model, made(model), gaps)
            later = torch.cat((gaps, gaps.new_ones(2, 6)), 1)
            found += [steps(model, cache, gaps, count=2, new=3), steps(model, cache, later)]
        close(found[2], found[0])
        close(found[3], found[1])


def test_other_masks_and_settings_expand() -> None:
    plain, applied = pair()
    added = torch.zeros(2, 1, 1, 12)
    added[0, :, :, 2:5] = -3.0
    plain.set_attn_implementation("sdpa")

    def added_steps(model: Any) -> torch.Tensor:
        cache = filled(model, dynamic(model))
        with torch.no_grad():
            found: torch.Tensor = model(prompt()[:, :1], attention_mask=added, **{cache_name(model): cache}).logits
        return found

    with decoded() as calls:
        close(added_steps(applied), added_steps(plain))
        applied.set_attn_implementation("sdpa")
        close(steps(applied, filled(applied, dynamic(applied))), steps(plain, filled(plain, dynamic(plain))))
        with torch.autocast("cpu", torch.bfloat16):
            steps(applied, filled(applied, dynamic(applied)))
    assert calls == []


def test_gradients_through_one_token_over_a_cache_are_the_plain_models() -> None:
    plain, applied = pair()
    found = []
    with decoded() as calls:
        for model in (plain, applied):
            cache = filled(model, dynamic(model))
            model(prompt()[:, :1], **{cache_name(model): cache}).logits.square().sum().backward()
            found.append(model.model.layers[0].self_attn.kv_b_proj.weight.grad)
    assert calls == []
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-4)


def test_hooks_and_another_layer_in_the_projections_place_are_run() -> None:
    plain, applied = pair()
    other = torch.nn.Sequential(copy.deepcopy(plain.model.layers[1].self_attn.kv_b_proj), torch.nn.Tanh())
    for model in (plain, applied):
        model.model.layers[0].self_attn.kv_b_proj.register_forward_hook(lambda _, __, y: 2 * y)
        model.model.layers[1].self_attn.kv_b_proj = other
    found = []
    with decoded() as calls:
        for model in (plain, applied):
            found.append(steps(model, filled(model, static(model))))
    assert calls == []
    close(found[1], found[0])


@pytest.mark.thorough
def test_layers_that_are_compiled_alone_and_copies_of_models() -> None:
    plain, applied = pair()
    right = steps(plain, filled(plain, static(plain)))
    copied = copy.deepcopy(applied)
    with decoded() as calls:
        close(steps(copied, filled(copied, static(copied))), right)
    assert len(calls) == 3 * LAYERS
    counts = OpCounts()
    for layer in applied.model.layers:
        layer.compile(fullgraph=True, backend=counts)
    close(steps(applied, filled(applied, static(applied))), right)
    assert sum(one["mla_decode"] for one in counts.graphs) == LAYERS
