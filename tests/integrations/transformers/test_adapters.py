"""apply(quantize=...) on models with PEFT's adapters: base layers are packed, adapters stay dense and learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import InvalidArgumentError
from registry.nn import PackedLinear, ScaledLinear

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from peft import IA3Config, LoraConfig, PrefixTuningConfig, get_peft_model, inject_adapter_in_model

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.swapping import swapped

# names that the oldest supported transformers has, and that PEFT asks for
pytestmark = [
    pytest.mark.usefixtures("late_imports", "without_cpp_kernels"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
TARGETS = ["q_proj", "v_proj"]
PART = "not packed: a part of an adapter"


def adapted(config: Any, **sizes: Any) -> Any:
    model = tiny("llama", torch.bfloat16, **{"hidden_size": 128, "intermediate_size": 256, **sizes})
    return get_peft_model(model, config)


def lora(**options: Any) -> Any:
    return LoraConfig(**{"target_modules": TARGETS, "init_lora_weights": False, **options})


def packed_names(model: torch.nn.Module) -> list[str]:
    return [name for name, one in model.named_modules() if isinstance(one, PackedLinear | ScaledLinear)]


def packed_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [model.get_submodule(name) for name in packed_names(model)]


def learnt(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


@pytest.mark.parametrize("quantize", ["int4", "fp8", pytest.param("w4a8", marks=pytest.mark.thorough)])
def test_base_layers_are_packed_and_lora_learns_beside_them(quantize: Any) -> None:
    model = adapted(lora())
    before = {name: one.detach().clone() for name, one in learnt(model).items()}
    with torch.no_grad():
        expected = model(prompt()).logits.double()
    report = apply(model, quantize=quantize)
    assert len(packed_names(model)) == 14
    assert len(report.left[PART]) == 8
    assert all(".lora_" in name for name in report.left[PART])
    assert report.left["not packed: the output layer (lm_head=True packs it)"] == ["base_model.model.lm_head"]
    assert learnt(model).keys() == before.keys()
    with torch.no_grad():
        found = model(prompt()).logits.double()
    assert (found - expected).square().mean().sqrt() < 0.3 * expected.square().mean().sqrt()
    optimizer = torch.optim.SGD(learnt(model).values(), lr=1.0)
    model.train()(prompt(), labels=prompt()).loss.backward()
    optimizer.step()
    assert all(not torch.equal(one, before[name]) for name, one in learnt(model).items())
    with pytest.raises(InvalidArgumentError, match="not merged into packed layers"):
        model.merge_adapter()
    with pytest.raises(InvalidArgumentError, match="weights in full precision are gone"):
        restore(model)


def test_adapters_are_merged_once_the_model_is_dequantised() -> None:
    model = adapted(lora())
    apply(model, quantize="int4")
    assert packed_names(model)
    model.get_base_model().dequantize()
    restore(model)
    with torch.no_grad():
        expected = model(prompt()).logits
        merged = model.merge_and_unload()
        found = merged(prompt()).logits
    assert not packed_names(model)
    assert (found.double() - expected.double()).abs().max() < 0.05 * expected.double().abs().max()


def test_a_dequantised_base_is_packed_again_in_another_format() -> None:
    model = adapted(lora())
    apply(model, quantize="int4")
    names = set(learnt(model))
    model.get_base_model().dequantize()
    assert set(learnt(model)) == names
    apply(model, quantize="fp8")
    assert [type(one) for one in packed_layers(model)] == [ScaledLinear] * 14


def test_a_model_inside_peft_is_restored() -> None:
    inner = tiny("llama")
    apply(inner)
    model = get_peft_model(inner, lora())
    restore(model)
    assert not list(swapped(model))
    assert inner.config._attn_implementation == "eager"
    model.train()(prompt(), labels=prompt()).loss.backward()


def test_lora_learns_beside_a_packed_conv1d() -> None:
    model = get_peft_model(tiny("gpt2"), lora(target_modules=["c_attn"], fan_in_fan_out=True))
    apply(model, quantize="int4")
    assert len(packed_names(model)) == 8
    model.train()(prompt(), labels=prompt()).loss.backward()
    assert all(one.grad is not None for one in learnt(model).values())
    model.eval().get_base_model().dequantize()
    with torch.no_grad():
        expected = model(prompt()).logits
        assert torch.allclose(model.merge_and_unload()(prompt()).logits, expected, atol=1e-4)


def test_a_packed_base_is_saved_without_its_adapters_and_loaded(tmp_path: Path) -> None:
    model = adapted(lora())
    apply(model, quantize="int4")
    base = model.unload()
    base.save_pretrained(tmp_path)
    again = type(base).from_pretrained(tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in base.state_dict().items())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: adapted(lora(use_dora=True)), "the lora, DoraLinearVariant adapter beside it needs its weight"),
        (
            lambda: adapted(IA3Config(target_modules=TARGETS, feedforward_modules=[])),
            "the ia3 adapter beside it needs its weight",
        ),
    ],
    ids=["dora", "ia3"],
)
def test_base_layers_that_an_adapter_reads_are_left(make: Any, reason: str) -> None:
    model = make()
    names = [name for name in learnt(model) if "lora_A" in name or "ia3" in name]
    report = apply(model, quantize="int4")
    (left,) = (names for told, names in report.left.items() if reason in told)
    assert left == [
        f"base_model.model.model.layers.{at}.self_attn.{one}.base_layer" for at in (0, 1) for one in TARGETS
    ]
    assert len(packed_names(model)) == 10
    assert [name for name in learnt(model) if "lora_A" in name or "ia3" in name] == names
    model.train()(prompt(), labels=prompt()).loss.backward()


def test_base_layers_with_a_merged_adapter_are_left() -> None:
    model = adapted(lora())
    model.merge_adapter()
    report = apply(model, quantize="int4")
    (left,) = (names for told, names in report.left.items() if "an adapter is merged into it" in told)
    assert len(left) == 4
    model.unmerge_adapter()


def test_a_copy_that_peft_trains_is_left() -> None:
    model = adapted(lora(modules_to_save=["lm_head"]))
    report = apply(model, quantize="int4", lm_head=True)
    kept = report.left["not packed: PEFT trains it, or a copy of it"]
    assert kept == [f"base_model.model.lm_head.{one}" for one in ("original_module", "modules_to_save.default")]
    assert "base_model.model.lm_head.modules_to_save.default.weight" in learnt(model)


def test_an_adapter_of_the_output_layer_leaves_it_the_output_layer() -> None:
    model = adapted(lora(target_modules=[*TARGETS, "lm_head"]))
    report = apply(model, quantize="int4")
    assert report.left["not packed: the output layer (lm_head=True packs it)"] == [
        "base_model.model.lm_head.base_layer"
    ]


def test_the_layers_of_a_prefix_encoder_are_left() -> None:
    config = PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=32
    )
    model = adapted(config)
    report = apply(model, quantize="int4")
    assert len(packed_names(model)) == 14
    assert all(name.startswith("prompt_encoder.") for name in report.left[PART])
    assert len(report.left[PART]) == 2


def test_adapters_injected_into_the_model_itself_are_left() -> None:
    model = tiny("llama", torch.bfloat16, hidden_size=128, intermediate_size=256)
    inject_adapter_in_model(lora(), model)
    report = apply(model, quantize="int4")
    assert len(packed_names(model)) == 14
    assert len(report.left[PART]) == 8
    assert len(learnt(model)) == 8
