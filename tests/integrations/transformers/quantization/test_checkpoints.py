"""Checkpoints of GPTQ, AWQ and compressed-tensors: loaded through both doors, as exactly the weights they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry.nn import ActOrderLinear, PackedLinear, ScaledLinear
from registry.nn.packed_linear import product_op

from .checkpoints_written import IDS, Written, awq, compressed_tensors, dense_model, gptq

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

    from registry.integrations.transformers import RegistryConfig, load

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

KINDS: dict[str, Callable[[Path], Written]] = {
    "gptq, 4 bits": gptq,
    "gptq, 4 bits, act-order": lambda folder: gptq(folder, shuffled=True),
    "gptq_v2, 8 bits, act-order": lambda folder: gptq(folder, bits=8, shuffled=True, version="gptq_v2"),
    "gptq, 2 bits": lambda folder: gptq(folder, bits=2),
    "awq": awq,
    "awq, version gemv": lambda folder: awq(folder, version="gemv"),
    "compressed-tensors, 4 bits": compressed_tensors,
    "compressed-tensors, 8 bits": lambda folder: compressed_tensors(folder, bits=8),
    "compressed-tensors, int8": lambda folder: compressed_tensors(folder, bits=8, size=64, kind="int-quantized"),
}
"""What is stored otherwise than the others."""


@pytest.fixture(params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return KINDS[request.param](tmp_path / "checkpoint")


def check_weights(model: torch.nn.Module, dense: dict[str, torch.Tensor]) -> None:
    """All layers are packed, and exactly the weights that the checkpoint stands for, rounded once to its dtype."""
    for name, expected in dense.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, PackedLinear)
        assert torch.equal(layer.weight.dequantize(), expected)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(IDS).logits.double()
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.few(2)
def test_a_checkpoint_is_loaded_as_it_is_and_saved_as_the_registrys(checkpoint: Written, tmp_path: Path) -> None:
    folder, dense = checkpoint
    model = load(folder)
    check_weights(model, dense)
    found, expected = logits(model), logits(dense_model(checkpoint))
    assert expected.square().mean().sqrt() > 0.1
    assert (found - expected).square().mean().sqrt() < 0.01 * expected.square().mean().sqrt()

    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    assert json.loads((saved / "config.json").read_text())["quantization_config"]["quant_method"] == "registry"
    again = AutoModelForCausalLM.from_pretrained(saved)
    state, loaded = model.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    assert all(torch.equal(state[name], loaded[name]) for name in state)
    assert torch.equal(logits(again), found)


def test_from_pretrained_takes_a_registry_config_beside_the_checkpoints_own(tmp_path: Path) -> None:
    folder, dense = awq(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RegistryConfig(bits=4))
    check_weights(model, dense)
    with pytest.warns(UserWarning, match=r"bits=8\): the checkpoint is already quantised, to 4 bits"):
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=RegistryConfig(bits=8))


def with_activations(folder: Path, kind: str, bits: int = 8) -> None:
    group = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    activations = {"num_bits": bits, "type": kind, "strategy": "token", "dynamic": True, "symmetric": True}
    weights = {**group["weights"], "type": kind}
    change_config(folder, config_groups={"group_0": {**group, "weights": weights, "input_activations": activations}})


@pytest.mark.parametrize("dtype", [pytest.param(torch.int8, marks=pytest.mark.thorough), torch.float8_e4m3fn], ids=str)
def test_a_scheme_of_weights_and_activations_in_8_bits_is_loaded_and_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    folder, dense = compressed_tensors(tmp_path / "first", bits=8, size=64, kind="int-quantized")
    state = load_file(folder / "model.safetensors")
    if dtype == torch.float8_e4m3fn:
        state = {name: part.to(dtype) if part.dtype == torch.int8 else part for name, part in state.items()}
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        change_config(folder, format="float-quantized")
    with_activations(folder, "int" if dtype == torch.int8 else "float")
    model = load(folder)
    for name in dense:
        layer = model.get_submodule(name)
        assert isinstance(layer, ScaledLinear)
        assert layer.levels.dtype == dtype
        assert torch.equal(layer.levels.float(), state[f"{name}.weight"].float())
        assert torch.equal(layer.scales, state[f"{name}.weight_scale"].float())
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))
    found, plain = logits(model), logits(model.dequantize())
    assert 0 < (found - plain).square().mean().sqrt() < 0.1 * plain.square().mean().sqrt()


def test_activations_that_are_rounded_otherwise_are_left(tmp_path: Path) -> None:
    folder, dense = compressed_tensors(tmp_path)
    with_activations(folder, "int")
    with pytest.warns(UserWarning, match="activations are not quantised, as the checkpoint's input_activations say"):
        model = load(folder)
    check_weights(model, dense)


def test_a_model_without_the_checkpoints_head_is_loaded(tmp_path: Path) -> None:
    folder, dense = gptq(tmp_path)
    model = load(folder, AutoModel)
    check_weights(model, {name.removeprefix("model."): weight for name, weight in dense.items()})
    model = load(folder, AutoModelForSequenceClassification, num_labels=3, dtype="auto")
    check_weights(model, dense)
    assert model.score.weight.shape == (3, 64)


def test_scales_are_converted_to_the_models_dtype(tmp_path: Path) -> None:
    folder, dense = gptq(tmp_path)
    model = load(folder, dtype=torch.bfloat16)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.scales.dtype == model.model.layers[0].self_attn.q_proj.bias.dtype == torch.bfloat16
    torch.testing.assert_close(
        layer.weight.dequantize().half(), dense["model.layers.0.mlp.up_proj"], rtol=2**-7, atol=1e-3
    )


def test_act_order_is_brought_into_groups_where_the_op_takes_none(tmp_path: Path) -> None:
    model = load(gptq(tmp_path, shuffled=True)[0])
    layers = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    assert all(type(layer) is ActOrderLinear and layer.bits == 4 for layer in layers)


@pytest.mark.thorough
def test_act_order_is_compiled_in_one_graph(tmp_path: Path) -> None:
    model = load(gptq(tmp_path, shuffled=True)[0])
    eager = logits(model)
    compiled = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS).logits.double(), eager, rtol=0.02, atol=0.02)


def test_groups_that_gemm_int4_does_not_take_are_held_in_4_bits_by_another_op(tmp_path: Path) -> None:
    folder, dense = gptq(tmp_path, size=16)
    model = load(folder)
    check_weights(model, dense)
    packed = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    assert {(layer.bits, product_op(layer.weight)) for layer in packed} == {(4, "gemm_w4a16")}
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


def test_layers_that_differ_from_the_others_are_loaded_and_saved(tmp_path: Path) -> None:
    """``dynamic`` of GPTQModel: other bits for a layer, and one that is not packed."""
    folder, dense = gptq(tmp_path / "4")
    eight, dense8 = gptq(tmp_path / "8", bits=8)
    state, other = (load_file(each / "model.safetensors") for each in (folder, eight))
    up, down = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
    state |= {name: tensor for name, tensor in other.items() if name.startswith(up)}
    state = {name: tensor for name, tensor in state.items() if not name.startswith(down)}
    state[f"{down}.weight"] = dense[down]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, dynamic={"-:.*down_proj": {}, r"+:.*\.up_proj": {"bits": 8}})
    model = load(folder)
    assert torch.equal(model.get_submodule(down).weight, dense.pop(down))
    check_weights(model, {**dense, up: dense8[up]})
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


def change_config(folder: Path, **changes: Any) -> None:
    """Change the quantization_config of a checkpoint; None removes an entry."""
    config = json.loads((folder / "config.json").read_text())
    settings = {**config["quantization_config"], **changes}
    config["quantization_config"] = {name: value for name, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
