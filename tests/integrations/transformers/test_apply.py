"""apply and restore on small models of thirteen families: equal logits and tokens, and what is left says why."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import registry
from registry.api import dispatcher
from registry.dispatch.recording.misses import Misses
from registry.dispatch.torch_side.profiles import parsed_name
from registry.errors import InvalidArgumentError, UnknownNameError
from registry.tuner.shapes.shapes import read_shapes

from .tiny_models import CONFIGS, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import accelerate
    import transformers

    from registry.integrations.transformers import RegistryConfig, apply, restore
    from registry.integrations.transformers.swapping import swapped

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

QUICK = ("llama", "gemma2", "mixtral", "gpt2", "deepseek_v3")
FAMILIES = [pytest.param(family, marks=[] if family in QUICK else [pytest.mark.thorough]) for family in CONFIGS]


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


def generated(model: Any, tokens: torch.Tensor, **how: Any) -> list[list[int]]:
    found: list[list[int]] = model.generate(tokens, max_new_tokens=6, do_sample=False, **how).tolist()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.few(2)
def test_a_model_computes_what_it_did_and_is_restored_to_the_bit(family: str) -> None:
    model, tokens = tiny(family), prompt()
    before, state = logits(model, tokens), copy.deepcopy(model.state_dict())
    padded = torch.ones_like(tokens)
    padded[0, :4] = 0
    told = generated(model, tokens), generated(model, tokens, attention_mask=padded)
    report = apply(model)
    assert (logits(model, tokens) - before).abs().max() < 1e-5
    assert (generated(model, tokens), generated(model, tokens, attention_mask=padded)) == told
    assert {"norm", "linear", "loss"} <= report.replaced.keys()
    assert any(part.startswith("attention") for part in report.replaced)
    assert ("experts" in report.replaced) is (family in {"mixtral", "deepseek_v3"})
    assert model.state_dict().keys() == state.keys()
    restore(model)
    assert not list(swapped(model))
    assert torch.equal(logits(model, tokens), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.thorough
@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "gpt2"])
def test_a_static_cache_longer_than_the_text_gives_the_same_tokens(family: str) -> None:
    model, tokens = tiny(family), prompt()
    how: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True}
    told = generated(model, tokens, **how)
    apply(model)
    assert generated(model, tokens, **how) == told


def test_proofs_are_no_calls_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``apply`` calls itself is neither recorded nor counted as missed, and has no names in a profile."""
    recorder, recording = dispatcher.recorder, tmp_path / "recording.yaml"
    monkeypatch.setattr(recorder, "misses", Misses({"KERNEL_REGISTRY_MISSES": str(tmp_path / "misses.yaml")}))
    dispatcher.forget()  # plans of earlier tests have been noted already
    model, tokens = tiny("llama"), prompt()
    with registry.record(tmp_path / "all.yaml"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as proofs:
            apply(model)
        with registry.record(recording):
            for _ in range(2):
                logits(model, tokens)
    recorder.misses.save()
    called = recorded(recording)
    assert called
    assert recorded(tmp_path / "all.yaml") == called
    assert recorded(tmp_path / "misses.yaml") == called
    assert not [one.key for one in proofs.key_averages() if parsed_name(one.key)]


def recorded(path: Path) -> dict[str, int]:
    """The calls in a file by problem."""
    return {str(problem): count for problem, count in read_shapes(path, dispatcher.catalog).counts.items()}


def test_what_is_replaced_is_told_and_a_second_time_nothing_is() -> None:
    model = tiny("llama")
    report = apply(model)
    assert len(report.replaced["norm"]) == 5
    assert report.replaced["gated MLP"] == ["model.layers.0.mlp", "model.layers.1.mlp"]
    assert len(report.replaced["linear layers of one input as one product"]) == 6
    assert "norm" in str(report)
    assert str(apply(model)) == "nothing to replace"


def test_models_within_another_module_have_attention_and_loss_replaced_and_restored() -> None:
    class Pair(torch.nn.Module):
        """Two models, as in distillation."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = tiny("llama"), tiny("deepseek_v3")

    pair = Pair()
    before = logits(pair.one, prompt()), logits(pair.other, prompt())
    report = apply(pair)
    assert report.replaced["loss"] == ["one", "other"]
    assert report.replaced["loss without logits in training"] == ["one.lm_head", "other.lm_head"]
    assert report.replaced["attention (eager before)"] == ["one", "other"]
    appends = report.replaced["rotary positions with the append to a static cache"]
    assert appends == ["one.model.layers.1.self_attn", "one.model.layers.0.self_attn"]
    (latents,) = (names for part, names in report.replaced.items() if "cached latents" in part)
    assert latents == ["other.model.layers.0.self_attn", "other.model.layers.1.self_attn"]
    assert pair.one.train()(prompt(), labels=prompt(), use_cache=False).logits is None
    pair.eval()
    restore(pair)
    assert torch.equal(logits(pair.one, prompt()), before[0])
    assert torch.equal(logits(pair.other, prompt()), before[1])
    assert pair.one.config._attn_implementation == pair.other.config._attn_implementation == "eager"


def test_a_module_without_a_model_of_transformers_is_named_in_the_report() -> None:
    report = apply(torch.nn.Sequential(torch.nn.Linear(8, 8)))
    assert "left     the model itself: attention: no transformers model with attention" in str(report)


def test_a_new_model_of_an_applied_models_class_is_a_plain_one(tmp_path: Path) -> None:
    model = tiny("llama")
    own, expected = type(model), logits(model, prompt())
    model.save_pretrained(tmp_path)
    apply(model)
    assert type(model) is not own
    for made in (type(model)(model.config), type(model).from_pretrained(tmp_path)):
        assert type(made) is own
        assert type(made.train()(prompt(), labels=prompt()).loss) is torch.Tensor
    torch.testing.assert_close(logits(made.eval(), prompt()), expected)
    layer = model.model.layers[0].self_attn.q_proj
    assert type(type(layer)(4, 3)) is torch.nn.Linear


def test_what_computes_something_else_is_left_with_the_reason() -> None:
    class Centred(torch.nn.Module):
        """Looks like a norm by its weight and eps."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(64)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * (x - x.mean(-1, keepdim=True))

    model = tiny("llama")
    model.model.norm = Centred()
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    before = logits(model, prompt())
    report = apply(model)
    assert torch.allclose(logits(model, prompt()), before, atol=1e-5)
    (norm,) = (reason for reason, names in report.left.items() if names == ["model.norm"])
    assert norm.startswith("norm: it computes something else: an error of")
    assert "gated MLP: its activation function is neither silu nor gelu" in report.left
    assert report.left["gated MLP: its activation function is neither silu nor gelu"] == ["model.layers.0.mlp"]


def test_the_error_of_a_norm_that_is_left_is_told_of_both_forms() -> None:
    # transformers' norm of float64 activations is in float32: an error of 1e-7, where Gemma's form is far off
    norm = tiny("llama").model.norm.double()
    (reason, *_) = apply(torch.nn.Sequential(norm)).left
    plain, gemma = re.findall(r"an error of ([0-9.e+-]+) where the largest", reason)
    assert 1e-9 < float(plain) < 1e-6
    assert float(gemma) > 0.1
    assert "; with 1 + its weight it computes something else" in reason


def test_a_layer_norm_with_a_forward_of_its_own_is_left() -> None:
    class OnePlus(torch.nn.LayerNorm):
        """Nemotron's: the weight is stored minus 1."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)

    norm = OnePlus(8)
    model = torch.nn.Sequential(norm, torch.nn.LayerNorm(8))
    report = apply(model)
    assert report.left["norm: a layer norm with a forward of its own"] == ["0"]
    assert report.replaced["norm"] == ["1"]
    assert type(norm) is OnePlus


def test_packed_weights_compute_what_their_numbers_say_and_are_not_restored() -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256}
    model, plain = (tiny("llama", torch.bfloat16, **sizes) for _ in range(2))
    report = apply(model, quantize="int4", group_size=32)
    assert len(report.replaced["linear packed in 4 bits"]) == 14
    assert report.left == {"not packed: the output layer (lm_head=True packs it)": ["lm_head"]}
    assert any("mlp" in name for name in report.replaced["gated MLP"])
    with torch.no_grad():
        for name, layer in plain.named_modules():
            if isinstance(layer, torch.nn.Linear) and name != "lm_head":
                packed = model.get_submodule(name)
                layer.weight.copy_(packed_weight(packed).dequantize())
    error = (logits(model, prompt()).float() - logits(plain, prompt()).float()).abs().max()
    assert error < 0.03 * logits(plain, prompt()).abs().max()
    with pytest.raises(InvalidArgumentError, match="quantised, and its weights in full precision are gone"):
        restore(model)


def packed_weight(layer: Any) -> registry.PackedWeight:
    """The weight of a packed layer, whose buffers may be parts of several layers'."""
    parts = {part: getattr(layer, part).contiguous() for part in ("qweight", "scales", "zeros")}
    return registry.PackedWeight(
        **parts, bits=layer.bits, group_size=layer.group_size, shape=(layer.out_features, layer.in_features)
    )


@pytest.mark.parametrize(
    ("family", "quantize"),
    [
        ("llama", "int4"),
        ("llama", "fp8"),
        ("mixtral", "int4"),
        ("llama", "w4a8"),
        pytest.param("llama", "w8a8", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.few(1)
def test_a_packed_model_is_saved_packed_and_loaded_to_the_bit(family: str, quantize: Any, tmp_path: Path) -> None:
    model = tiny(family, torch.bfloat16, hidden_size=128, intermediate_size=256)
    sizes = {} if quantize in {"fp8", "w8a8"} else {"group_size": 32}
    report = apply(model, quantize=quantize, **sizes)
    assert ("experts packed in 4 bits" in report.replaced) is (family == "mixtral")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    apply(loaded)
    assert torch.equal(logits(loaded, prompt()), logits(model, prompt()))


def test_a_model_that_was_loaded_packed_is_restored(tmp_path: Path) -> None:
    model = tiny("llama", torch.bfloat16, hidden_size=128, intermediate_size=256)
    apply(model, quantize="int4", group_size=32)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    before = logits(loaded, prompt())
    assert len(apply(loaded).replaced["linear layers of one input as one product"]) == 6
    restore(loaded)
    assert torch.equal(logits(loaded, prompt()), before)


def test_wrong_input_is_told_and_changes_nothing() -> None:
    for function in (apply, restore):
        with pytest.raises(InvalidArgumentError, match=f"{function.__name__}: got a int, expected a model"):
            function(3)  # type: ignore[arg-type]
    model = tiny("llama")
    with pytest.raises(UnknownNameError, match="int3"):
        apply(model, quantize="int3")  # type: ignore[arg-type]
    assert not list(swapped(model))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantize": ["int4"]}, "quantize is a list, expected one of 'int8', 'int4'"),
        ({"quantize": 4}, "quantize is a int, expected one of"),
        ({"lm_head": True}, 'lm_head=True without quantize\n.*quantize="int4"'),
        ({"group_size": 7, "symmetric": True}, "group_size=7, symmetric=True without quantize"),
        ({"quantize": "fp8", "group_size": 7}, "group_size=7 beside quantize='fp8', which has one scale for each row"),
        ({"quantize": "w8a8", "symmetric": True}, "symmetric=True beside quantize='w8a8'"),
        ({"quantize": "int4", "group_size": 7}, "group_size=7\n.*expected one of -1, 16, 32"),
        ({"quantize": "int4", "lm_head": "no"}, "lm_head='no', expected True or False"),
        ({"fused_loss": 1}, "fused_loss=1, expected True or False"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_told(given: dict[str, Any], message: str) -> None:
    model = tiny("llama", num_hidden_layers=1)
    with pytest.raises(InvalidArgumentError, match=message):
        apply(model, **given)
    assert not list(swapped(model))


def test_a_config_of_from_pretrained_is_not_a_format_of_apply() -> None:
    with pytest.raises(InvalidArgumentError, match=r"quantize is a RegistryConfig.*\n.*from_pretrained"):
        apply(tiny("llama", num_hidden_layers=1), quantize=RegistryConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("quantize", [None, "int4"])
def test_weights_that_are_not_loaded_are_told_and_nothing_changes(quantize: Any) -> None:
    with torch.device("meta"):
        model = tiny("llama", torch.bfloat16)
    with pytest.raises(InvalidArgumentError, match="is not loaded"):
        apply(model, quantize=quantize)
    partly = tiny("llama", torch.bfloat16)
    partly.model.layers[1].mlp.to("meta")
    with pytest.raises(InvalidArgumentError, match=r"model\.layers\.1\.mlp\.gate_proj.* is not loaded"):
        apply(partly, quantize=quantize)
    for each in (model, partly):
        assert not list(swapped(each))
        assert all(type(one).__module__ != "registry.nn.packed_linear" for one in each.modules())


def test_weights_that_accelerate_holds_elsewhere_count_as_loaded() -> None:
    model, tokens = tiny("llama"), prompt()
    before = logits(model, tokens)
    accelerate.cpu_offload(model)
    assert all(one.is_meta for one in model.parameters())
    report = apply(model)
    assert "norm: its weights are not loaded" in report.left
    assert torch.allclose(logits(model, tokens), before, atol=1e-5)
