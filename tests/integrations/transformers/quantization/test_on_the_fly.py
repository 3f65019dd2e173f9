"""Models whose linear layers are packed while transformers loads them, and what they are used for."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

import registry
from registry.nn import PackedA8Linear, PackedLinear, ScaledLinear
from registry.nn.packed_linear import product_op

from .checkpoints_written import IDS, layers, llama

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

    from registry.integrations.transformers import RegistryConfig

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint in full precision."""
    folder = tmp_path_factory.mktemp("plain")
    llama().save_pretrained(folder)
    return folder


def packed(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=RegistryConfig(**options))


@pytest.fixture(scope="module")
def model(plain: Path) -> Any:
    return packed(plain, group_size=32)


def rms(x: torch.Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def check_logits(model: torch.nn.Module, dense: torch.nn.Module) -> None:
    """Equal up to half precision's rounding of activations and weights."""
    with torch.no_grad():
        found, expected = model(IDS).logits, dense(IDS).logits
    assert rms(expected) > 0.1
    assert rms(found.double() - expected.double()) < 0.03 * rms(expected)


FORMS = [
    {"group_size": 32},
    {"group_size": 64, "symmetric": True},
    {"group_size": -1},
    {"group_size": 16},
    {"bits": 8, "group_size": 16},
    pytest.param({"bits": 2, "group_size": 32}, marks=pytest.mark.thorough),
    pytest.param({"bits": 1, "group_size": 32}, marks=pytest.mark.thorough),
    {"codebook": "nf4", "group_size": 64},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.few(1)
def test_a_model_is_packed_as_by_quantize_and_comes_back_bit_by_bit(
    plain: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    model = packed(plain, **options)
    original = llama()
    assert {name for name, layer in model.named_modules() if isinstance(layer, PackedLinear)} == set(layers(original))
    dense = llama()
    for name in layers(original):
        expected = registry.quantize(original.get_submodule(name).weight, **options)
        found = model.get_submodule(name).weight
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))
        dense.get_submodule(name).weight.data = expected.dequantize()
    check_logits(model, dense)

    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert said["quant_method"] == "registry"
    assert said["bits"] == options.get("bits", 4)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    state, loaded = model.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    assert all(torch.equal(state[name], loaded[name]) and state[name].dtype == loaded[name].dtype for name in state)
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert set(load_file(tmp_path / "model.safetensors")) == set(state)


@pytest.mark.parametrize("mostly", [False, True])
def test_layers_with_and_without_zero_points_come_back_and_the_config_tells_which(
    plain: Path, tmp_path: Path, mostly: bool
) -> None:
    model, up = packed(plain, group_size=32, symmetric=mostly), "model.layers.0.mlp.up_proj"
    other = PackedLinear.from_linear(llama().get_submodule(up), bits=4, group_size=32, symmetric=not mostly)
    model.model.layers[0].mlp.up_proj = other
    model.hf_quantizer.postprocess_model(model)
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert said["symmetric"] is mostly
    assert {name: form["symmetric"] for name, form in said["modules"].items()} == {up: not mostly}
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", pytest.param("int8", marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_weights_and_activations_of_8_bits(plain: Path, tmp_path: Path, dtype: str) -> None:
    model = packed(plain, bits=8, activations=dtype)
    original = llama()
    for name in layers(original):
        expected = ScaledLinear.from_linear(original.get_submodule(name), dtype)
        found = model.get_submodule(name)
        assert torch.equal(found.levels.float(), expected.levels.float())
        assert torch.equal(found.scales, expected.scales)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.model.layers[0].mlp.up_proj.levels.dtype == getattr(torch, dtype)
    with torch.no_grad():
        found = model(IDS).logits
        assert torch.equal(again(IDS).logits, found)
        expected = original(IDS).logits
    assert rms(found.double() - expected.double()) < 0.2 * rms(expected)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.few(1)
def test_packed_weights_beside_activations_of_8_bits(plain: Path, tmp_path: Path, static: bool) -> None:
    model = packed(plain, bits=4, group_size=32, activations="int8")
    original = llama()
    names = layers(original)
    for name in names:
        found = model.get_submodule(name)
        assert type(found) is PackedA8Linear
        expected = registry.quantize(original.get_submodule(name).weight, group_size=32)
        assert all(torch.equal(a, b) for a, b in zip(found.weight.tensors, expected.tensors, strict=True))
        found.activation_scale = torch.tensor([0.05]) if static else None
    model.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (said["bits"], said["activations"]) == (4, "int8")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(type(again.get_submodule(name)) is PackedA8Linear for name in names)
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
        assert rms(model(IDS).logits.double() - original(IDS).logits.double()) < 0.5 * rms(original(IDS).logits)
    assert again.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("options", [{"group_size": 32}, {"bits": 8}, {"codebook": "nf4", "group_size": 64}], ids=str)
@pytest.mark.few(1)
def test_a_model_in_float32_computes_in_float32(tmp_path: Path, options: dict[str, Any]) -> None:
    llama(torch.float32).save_pretrained(tmp_path)
    model, dense = packed(tmp_path, **options), llama(torch.float32)
    for name, layer in model.named_modules():
        if isinstance(layer, PackedLinear):
            dense.get_submodule(name).weight.data = layer.weight.dequantize()
    with torch.no_grad():
        found, expected = model(IDS).logits, dense(IDS).logits
    assert found.dtype == torch.float32
    assert rms(found.double() - expected.double()) < 1e-5 * rms(expected)


def test_a_config_is_the_callers_own_and_serves_several_models(plain: Path) -> None:
    config = RegistryConfig(group_size=64, modules_to_not_convert=["o_proj", "lm_head"])
    before = config.to_dict()
    models = [AutoModelForCausalLM.from_pretrained(plain, quantization_config=config) for _ in range(2)]
    assert config.to_dict() == before
    for model in models:
        attention = model.model.layers[0].self_attn
        assert isinstance(attention.q_proj, PackedLinear)
        assert type(attention.o_proj) is type(model.lm_head) is torch.nn.Linear


def test_output_embeddings_are_packed_where_the_list_does_not_name_them(plain: Path) -> None:
    model = packed(plain, bits=8, group_size=64, modules_to_not_convert=[])
    assert isinstance(model.lm_head, PackedLinear)


def test_groups_that_do_not_fill_k_are_made_smaller_and_stay_where_none_fills_it(tmp_path: Path) -> None:
    # down_proj's K is 96 = 3 * 32, and in the second model 100, of which no group size is a divisor
    llama(intermediate_size=96).save_pretrained(tmp_path)
    model = packed(tmp_path, group_size=64)
    assert {layer.group_size for layer in model.modules() if isinstance(layer, PackedLinear)} == {32, 64}
    model.save_pretrained(tmp_path / "packed")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
    llama(intermediate_size=100).save_pretrained(tmp_path)
    model = packed(tmp_path, group_size=64)
    down = model.model.layers[0].mlp.down_proj
    assert (down.group_size, product_op(down.weight)) == (64, "gemm_w4a16")
    dense = llama(intermediate_size=100)
    for name, layer in model.named_modules():
        if isinstance(layer, PackedLinear):
            dense.get_submodule(name).weight.data = layer.weight.dequantize()
    check_logits(model, dense)
    model.save_pretrained(tmp_path / "uneven")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "uneven")
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    model = packed(tmp_path, group_size=32, modules_to_not_convert=[])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "packed")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_model_generates_is_copied_converted_and_dequantised(model: Any) -> None:
    greedy = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    tokens = model.generate(IDS, **greedy)
    assert tokens.shape == (1, IDS.shape[1] + 4)
    twin = copy.deepcopy(model)
    assert torch.equal(twin.generate(IDS, **greedy), tokens)
    assert twin.state_dict().keys() == model.state_dict().keys()
    other = llama()
    with torch.no_grad():
        half = copy.deepcopy(model).to(torch.float16)
        assert half(IDS).logits.dtype == torch.float16
        assert rms(half(IDS).logits - twin(IDS).logits) < 0.1 * rms(twin(IDS).logits)
    dense = twin.dequantize()
    assert not [layer for layer in dense.modules() if isinstance(layer, PackedLinear)]
    assert dense.state_dict().keys() == other.state_dict().keys()
    check_logits(model, dense)


def test_a_state_dict_is_loaded_into_another_model(model: Any, plain: Path) -> None:
    other = packed(plain, group_size=32)
    for buffer in other.model.buffers():
        buffer.zero_()
    other.load_state_dict(model.state_dict())
    other.model.rotary_emb = model.model.rotary_emb
    with torch.no_grad():
        assert torch.equal(other(IDS).logits, model(IDS).logits)


@pytest.mark.thorough
def test_a_model_is_compiled_in_one_graph(model: Any) -> None:
    compiled = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS).logits, model(IDS).logits, rtol=0.02, atol=0.02)


def test_memory_is_planned_by_packed_sizes(plain: Path, model: Any) -> None:
    quantizer = model.hf_quantizer
    weight = torch.empty(64, 64, dtype=torch.bfloat16)
    assert quantizer.param_element_size(model, "model.layers.0.mlp.up_proj.weight", weight) == 0.5 + 4 / 32
    assert quantizer.param_element_size(model, "lm_head.weight", weight) == 2


def test_nothing_is_held_in_full_precision_beside_the_layer_that_is_packed(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plainly = registry.quantize

    def watching(weight: torch.Tensor, *rest: Any) -> Any:
        import gc

        alive = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
        dense = {
            each.data_ptr()
            for each in alive
            if each.dtype == torch.bfloat16 and each.shape in SHAPES and not each.is_meta
        }
        seen.append(len(dense))
        return plainly(weight, *rest)

    monkeypatch.setattr("registry.integrations.transformers.quantization.packing.quantize", watching)
    packed(plain, group_size=32)
    assert len(seen) == 7
    assert max(seen) == 1


SHAPES = [torch.Size(shape) for shape in ((32, 64), (64, 128), (64, 64))]


def test_a_gradient_reaches_the_embeddings_through_packed_layers(model: Any) -> None:
    assert isinstance(model, LlamaForCausalLM)
    twin = copy.deepcopy(model)
    twin(IDS, labels=IDS).loss.backward()
    gradient = twin.model.embed_tokens.weight.grad
    dense = copy.deepcopy(model).dequantize()
    dense(IDS, labels=IDS).loss.backward()
    expected = dense.model.embed_tokens.weight.grad
    assert rms(expected) > 0
    assert rms(gradient.double() - expected.double()) < 0.05 * rms(expected)


def test_a_model_that_initialises_its_layers_children_is_loaded_packed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 96, "num_heads": 8, "head_dim": 16}
    original = Mamba2ForCausalLM(Mamba2Config(**sizes))
    original.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"mixer\.out_proj is not packed: the code around reads the weight"):
        model = packed(tmp_path, group_size=32)
    assert "initialize_weights" not in vars(model)
    names = [name for name in layers(original) if not name.endswith("out_proj")]
    assert names
    for name in names:
        expected = registry.quantize(original.get_submodule(name).weight, group_size=32)
        found = model.get_submodule(name).weight
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected.tensors, strict=True))
