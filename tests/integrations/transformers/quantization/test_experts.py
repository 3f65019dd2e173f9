"""Mixtures of experts: experts in two tensors are packed where a small example proves what they compute."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import registry
from registry import InvalidArgumentError
from registry.nn import PackedExpertsMlp, ScaledExpertsMlp

from .checkpoints_written import IDS, awq_layer, compressed_layer, drawn, gptq_layer

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM, MixtralForCausalLM

    from registry.integrations.transformers import RegistryConfig, load
    from registry.integrations.transformers.quantization.experts import expert_modules

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


def mixtral(layers: int = 1) -> MixtralForCausalLM:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(**sizes, **heads, initializer_range=0.2)).bfloat16().eval()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    mixtral().save_pretrained(folder)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(IDS).logits.double()
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("symmetric", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_experts_are_packed_each_as_by_quantize_and_come_back(plain: Path, tmp_path: Path, symmetric: bool) -> None:
    config = RegistryConfig(group_size=32, symmetric=symmetric)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, PackedExpertsMlp)
    original = mixtral().model.layers[0].mlp.experts
    for expert in range(3):
        for found, weights in ((experts.gate_up, original.gate_up_proj), (experts.down, original.down_proj)):
            expected = registry.quantize(weights[expert], group_size=32, symmetric=symmetric)
            assert all(torch.equal(a, b) for a, b in zip(found[expert].tensors, expected.tensors, strict=True))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    state, loaded = model.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    assert all(torch.equal(state[name], loaded[name]) for name in state)
    found = logits(model)
    assert torch.equal(logits(again), found)
    dense = again.dequantize()
    assert dense.state_dict().keys() == mixtral().state_dict().keys()
    assert (logits(dense) - found).square().mean().sqrt() < 0.05 * found.square().mean().sqrt()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", pytest.param("int8", marks=pytest.mark.thorough)])
def test_experts_of_8_bits_are_rounded_by_rows_and_come_back(plain: Path, tmp_path: Path, dtype: str) -> None:
    config = RegistryConfig(bits=8, activations=dtype)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, ScaledExpertsMlp)
    original = mixtral().model.layers[0].mlp.experts
    levels, scales = registry.call("quantize_per_token", original.down_proj.detach(), dtype)
    assert torch.equal(experts.down_levels.view(torch.uint8), levels.view(torch.uint8))
    assert torch.equal(experts.down_scales, scales)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    state, loaded = model.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    assert all(state[name].dtype == loaded[name].dtype for name in state)
    assert all(torch.equal(state[name].float(), loaded[name].float()) for name in state)
    found = logits(model)
    assert torch.equal(logits(again), found)
    dense = again.dequantize()
    assert dense.state_dict().keys() == mixtral().state_dict().keys()
    assert dense.model.layers[0].mlp.experts.down_proj.dtype == torch.bfloat16
    assert (logits(dense) - found).square().mean().sqrt() < 0.1 * found.square().mean().sqrt()


def one_by_one(folder: Path, layer: Any, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A Mixtral in float16 whose experts alone are packed by ``layer(q, zeros, scales, g_idx)``; its dense tensors."""
    model = mixtral().to(torch.float16)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    generator, dense = torch.Generator().manual_seed(1), model.state_dict()
    for name in [name for name in state if ".experts." in name]:
        n, k = state.pop(name).shape
        q, zeros, scales = drawn(n, k, k // 32, 4, generator)
        g_idx = torch.arange(k) // 32
        weight = ((q - zeros[:, g_idx]).double() * scales.double()[:, g_idx]).half()
        stem, part = name.removesuffix(".weight").rsplit(".", 1)
        expert = int(stem.rpartition(".")[2])
        both = dense["model.layers.0.mlp.experts.gate_up_proj"]
        place = {"w1": both[expert, :n], "w3": both[expert, n:], "w2": dense[f"{EXPERTS}.down_proj"][expert]}[part]
        place.copy_(weight)
        state |= {f"{stem}.{part}.{each}": tensor for each, tensor in layer(q, zeros, scales, g_idx).items()}
    save_file({name: part.contiguous() for name, part in state.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return dense


EXPERTS = "model.layers.0.mlp.experts"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": GROUP}}
KINDS = {
    "gptq": (lambda q, zeros, scales, g_idx: gptq_layer(q, zeros, scales, g_idx, 4, 1), GPTQ),
    "awq": (lambda q, zeros, scales, _: awq_layer(q, zeros, scales), AWQ),
    "compressed-tensors": (lambda q, zeros, scales, _: compressed_layer(q, zeros, scales, 4), COMPRESSED),
}


@pytest.mark.parametrize(
    "kind", ["gptq", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in list(KINDS)[1:])]
)
def test_experts_that_a_checkpoint_has_one_by_one_are_loaded_exactly(tmp_path: Path, kind: str) -> None:
    layer, settings = KINDS[kind]
    dense = one_by_one(tmp_path / "first", layer, settings)
    model = load(tmp_path / "first")
    experts = model.model.layers[0].mlp.experts
    assert torch.equal(experts.gate_up.dequantize(), dense[f"{EXPERTS}.gate_up_proj"])
    assert torch.equal(experts.down.dequantize(), dense[f"{EXPERTS}.down_proj"])
    found = logits(model)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), found)
    plain = mixtral().half()
    plain.load_state_dict(dense)
    assert (logits(plain) - found).square().mean().sqrt() < 0.02 * found.square().mean().sqrt()


def rounded_one_by_one(
    folder: Path,
    dtype: str,
    activations: bool = True,
    model: Any = None,
    rounded: str = r"\.experts\.",
    ignored: tuple[str, ...] = (),
) -> None:
    """A Mixtral in which weights are in 8 bits, with a scale for each row, as llm-compressor writes them.

    Those with names like ``rounded``: the experts' alone unless another pattern is given.
    """
    (mixtral() if model is None else model).save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if re.search(rounded, name)]:
        state[name], state[f"{name}_scale"] = registry.call("quantize_per_token", state[name], dtype)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    each = {"num_bits": 8, "type": "float" if dtype == "float8_e4m3fn" else "int", "symmetric": True}
    group: dict[str, Any] = {"targets": ["Linear"], "weights": {**each, "strategy": "channel"}}
    if activations:
        group["input_activations"] = {**each, "strategy": "token", "dynamic": True}
    config, kind = json.loads((folder / "config.json").read_text()), each["type"]
    settings = {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
    }
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", pytest.param("int8", marks=pytest.mark.thorough)])
def test_experts_of_8_bits_that_a_checkpoint_has_one_by_one_are_loaded_exactly(tmp_path: Path, dtype: str) -> None:
    rounded_one_by_one(tmp_path / "first", dtype)
    model = load(tmp_path / "first")
    experts, original = model.model.layers[0].mlp.experts, mixtral().model.layers[0].mlp.experts
    assert isinstance(experts, ScaledExpertsMlp)
    for found, weights in ((experts.gate_up, original.gate_up_proj), (experts.down, original.down_proj)):
        levels, scales = registry.call("quantize_per_token", weights.detach(), dtype)
        assert torch.equal(found.levels.view(torch.uint8), levels.view(torch.uint8))
        assert torch.equal(found.scales, scales)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    "rounded",
    [r"self_attn\.\w_proj", pytest.param(r"self_attn\.\w_proj|layers\.0\..*experts", id="and-experts-of-one")],
)
def test_experts_in_full_precision_beside_layers_of_8_bits_are_loaded_exactly(tmp_path: Path, rounded: str) -> None:
    original, some = mixtral(2), "experts" in rounded
    ignored = ("lm_head", r"re:.*layers\.1\..*experts.*" if some else "re:.*experts.*")
    rounded_one_by_one(tmp_path / "first", "float8_e4m3fn", model=original, rounded=rounded, ignored=ignored)
    model = load(tmp_path / "first")
    first, second = (layer.mlp.experts for layer in model.model.layers)
    assert isinstance(first, ScaledExpertsMlp) == some
    for name in ("gate_up_proj", "down_proj"):
        assert torch.equal(getattr(second, name), getattr(original.model.layers[1].mlp.experts, name))
        if not some:
            assert torch.equal(getattr(first, name), getattr(original.model.layers[0].mlp.experts, name))
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(model))


def test_an_expert_of_8_bits_of_another_shape_is_named(tmp_path: Path) -> None:
    rounded_one_by_one(tmp_path, "int8")
    state = load_file(tmp_path / "model.safetensors")
    name = next(name for name in state if name.endswith(".experts.1.w1.weight"))
    save_file(state | {name: state[name][:, :32].contiguous()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        InvalidArgumentError, match=r"experts\.1\.gate_proj\.weight has shape \(96, 32\)\n  expected \(96, 64\)"
    ):
        load(tmp_path)


def test_experts_of_8_bits_beside_whole_activations_are_refused(tmp_path: Path) -> None:
    rounded_one_by_one(tmp_path, "int8", activations=False)
    with pytest.raises(InvalidArgumentError, match=r"packed experts of 8 bits\n  expected 4, or 8 beside activations"):
        load(tmp_path)


def test_experts_of_which_a_tensor_is_missing_are_refused(tmp_path: Path) -> None:
    one_by_one(tmp_path, *KINDS["gptq"])
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    save_file({name: part for name, part in state.items() if ".experts.1.w3." not in name}, file, {"format": "pt"})
    with pytest.raises(InvalidArgumentError, match="3, 2 packed experts of gate_up_proj, the model has 3"):
        load(tmp_path)


def test_experts_stay_in_full_precision_where_named_or_of_other_bits(plain: Path) -> None:
    config = RegistryConfig(group_size=32, modules_to_not_convert=["lm_head", "experts"])
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    assert torch.equal(model.model.layers[0].mlp.experts.down_proj, mixtral().model.layers[0].mlp.experts.down_proj)
    with pytest.warns(UserWarning, match=r"mlp\.experts.* not packed: experts are in 4 bits without a codebook"):
        AutoModelForCausalLM.from_pretrained(plain, quantization_config=RegistryConfig(bits=8, group_size=32))


def test_a_saved_model_without_experts_is_refused(plain: Path, tmp_path: Path) -> None:
    config = RegistryConfig(group_size=32)
    AutoModelForCausalLM.from_pretrained(plain, quantization_config=config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = {name: part for name, part in load_file(file).items() if not name.endswith("down_scales")}
    save_file(state, file, {"format": "pt"})
    with pytest.raises(InvalidArgumentError, match=r"no file of the checkpoint has .*experts\.down_scales"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_experts_that_compute_otherwise_are_left() -> None:
    """The layout alone is no proof: these clamp their gates, as some models do."""
    plainly = type(mixtral().model.layers[0].mlp.experts)

    class Clamped(plainly):  # type: ignore[misc, valid-type]
        def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden.clamp(-0.1, 0.1), index, weights)

    model = torch.nn.ModuleDict({"plain": plainly(mixtral().config), "clamped": Clamped(mixtral().config)})
    assert [name for name, _ in expert_modules(model)] == ["plain"]
