"""Mixtures of experts: experts in two tensors are packed where a small example proves what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

import registry
from registry import InvalidArgumentError
from registry.integrations.transformers import RegistryConfig
from registry.integrations.transformers.quantization.experts import expert_modules
from registry.nn import PackedExpertsMlp

from .checkpoints_written import IDS


def mixtral() -> MixtralForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
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


@pytest.mark.parametrize("symmetric", [False, True])
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


def test_experts_stay_in_full_precision_where_named_or_of_other_bits(plain: Path) -> None:
    config = RegistryConfig(group_size=32, modules_to_not_convert=["lm_head", "experts"])
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    assert torch.equal(model.model.layers[0].mlp.experts.down_proj, mixtral().model.layers[0].mlp.experts.down_proj)
    with pytest.warns(UserWarning, match=r"mlp\.experts are not packed: experts are in 4 bits without a codebook"):
        AutoModelForCausalLM.from_pretrained(plain, quantization_config=RegistryConfig(bits=8, group_size=32))


def test_a_saved_model_without_experts_is_refused(plain: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

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
