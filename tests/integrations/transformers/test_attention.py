"""Attention in models of transformers: its masks, its sinks, and its weights where these are asked for."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import RegistryError

from .op_counts import OpCounts
from .tiny_models import cache_name, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers
    from transformers import masking_utils

    from registry.integrations.transformers import apply
    from registry.integrations.transformers.attention import registry_attention, registry_mask

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")

DOORS = ("apply", "name")
"""The ways to have a model's attention run by the registry."""


def by_door(model: Any, door: str) -> Any:
    if door == "apply":
        apply(model)
    else:
        model.set_attn_implementation("registry")
    return model


def assert_the_same(found: Any, expected: Any) -> None:
    """Whether a model's logits and attention's weights are those of another."""
    assert len(found.attentions) == len(expected.attentions)
    for one, other in zip((*found.attentions, found.logits), (*expected.attentions, expected.logits), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


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


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "deepseek_v3"])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.few(4)
def test_weights_are_the_plain_models_where_a_call_asks_for_them(family: str, door: str, static: bool) -> None:
    plain, ours = tiny(family), by_door(tiny(family), door)
    found = []
    for model in (plain, ours):
        kind = transformers.StaticCache if static else transformers.DynamicCache
        given = {cache_name(model): kind(config=model.config, **({"max_cache_len": 32} if static else {}))}
        mask = torch.ones(2, 16, dtype=torch.int64)
        mask[0, :4] = 0
        with torch.no_grad():
            found.append([model(prompt(), attention_mask=mask[:, :11], **given, output_attentions=True)])
            for at in (11, 12):
                padded = mask[:, : at + 1]
                found[-1].append(model(prompt()[:, :1], attention_mask=padded, **given, output_attentions=True))
            assert model(prompt()).attentions is None
    for own, other in zip(*found, strict=True):
        assert_the_same(other, own)


@pytest.mark.parametrize("door", DOORS)
def test_weights_are_returned_where_the_configuration_asks_for_them(door: str) -> None:
    plain = tiny("llama")
    plain.config.output_attentions = True
    ours = by_door(copy.deepcopy(plain), door)
    with torch.no_grad():
        assert_the_same(ours(prompt()), plain(prompt()))
    with pytest.raises(ValueError, match="`output_attentions` attribute is not supported"):
        by_door(tiny("llama"), door).config.output_attentions = True


def test_weights_of_each_new_token_are_returned_by_generate() -> None:
    found = [
        model.generate(
            prompt(), max_new_tokens=3, do_sample=False, output_attentions=True, return_dict_in_generate=True
        ).attentions
        for model in (tiny("llama"), by_door(tiny("llama"), "apply"))
    ]
    for own, other in zip(*found, strict=True):
        for one, another in zip(own, other, strict=True):
            torch.testing.assert_close(another, one, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "door"),
    [
        ("llama", "apply"),
        *(
            pytest.param(family, door, marks=pytest.mark.thorough)
            for family, door in (("llama", "name"), ("gpt2", "name"), ("gpt2", "apply"), ("gemma2", "apply"))
        ),
    ],
)
def test_a_program_returns_weights_where_its_call_asks_for_them(family: str, door: str) -> None:
    plain, ours, counts = tiny(family), by_door(tiny(family), door), OpCounts()
    compiled: Any = torch.compile(ours, fullgraph=True, backend=counts)
    with torch.no_grad():
        # transformers' hooks are installed by the first call that needs them, which torch.compile does not trace
        ours(prompt(), output_attentions=True)
        assert_the_same(
            compiled(prompt(), use_cache=False, output_attentions=True), plain(prompt(), output_attentions=True)
        )
        assert compiled(prompt(), use_cache=False).attentions is None
    assert [one["attention"] for one in counts.graphs] == [0, 2]


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_that_no_function_returns_are_refused(compiled: bool) -> None:
    module, x = torch.nn.Identity(), torch.ones(1, 2, 3, 16)

    def attend() -> Any:
        return registry_attention(module, x, x, x, None, output_attentions=True)

    with pytest.raises(RegistryError, match=r"output_attentions=True: the model's file has no .*\n.*returns weights"):
        (torch.compile(attend, fullgraph=True, backend="eager") if compiled else attend)()


def test_a_mask_that_is_computed_from_activations_learns() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn((2, heads, 5, 8), generator=generator) for heads in (4, 2, 2))
    added = torch.randn((2, 4, 5, 5), generator=generator)
    module, found = torch.nn.Module(), []
    module.num_key_value_groups = 2  # type: ignore[assignment]
    for dtype in (torch.float32, torch.float64):
        mask = added.to(dtype, copy=True).requires_grad_()
        if dtype is torch.float32:
            out, _ = registry_attention(module, q, k, v, mask)
        else:
            every = (each.double().repeat_interleave(2, 1) for each in (k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q.double(), *every, attn_mask=mask).transpose(1, 2)
        out.square().sum().backward()
        assert mask.grad is not None
        found.append(mask.grad)
    torch.testing.assert_close(found[0].double(), found[1], atol=1e-5, rtol=1e-4)
