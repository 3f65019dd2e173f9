"""Models packed and loaded on a GPU: one weight in full precision at a time, the CPU's weights, logits, CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("accelerate")

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from registry.integrations.transformers import RegistryConfig
from registry.nn import PackedLinear

IDS = torch.arange(1, 17).unsqueeze(0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 16 layers, 1024 wide: 352 MiB of linear layers in bfloat16."""
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16}
    config = LlamaConfig(**sizes, num_attention_heads=16, num_key_value_heads=4, initializer_range=0.05)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_packed_on_the_gpu_one_by_one(plain: Path, bits: int) -> None:
    config = RegistryConfig(bits=bits, symmetric=True)
    on_cpu = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, device_map={"": 0})
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    layers = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    dense = sum(2 * layer.in_features * layer.out_features for layer in layers)
    # rounding the largest weight takes some copies of its 11 MiB in float32; all weights in bfloat16 are 352 MiB
    assert most < model.get_memory_footprint() + 100 * 2**20
    assert bits == 8 or most < 0.75 * dense
    for name, layer in on_cpu.named_modules():
        if isinstance(layer, PackedLinear):
            found, expected = model.get_submodule(name).weight, layer.weight
            assert found.device.type == "cuda"
            assert torch.equal(found.scales.cpu(), expected.scales)
            # a quotient may be rounded to the other side on another device
            assert (found.dequantize().cpu() == expected.dequantize()).double().mean() > 0.999
    dense_model = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=config, device_map={"": 0}
    ).dequantize()
    with torch.no_grad():
        logits, wanted = (each(IDS.cuda()).logits.double() for each in (model, dense_model))
    assert (logits - wanted).square().mean().sqrt() < 0.05 * wanted.square().mean().sqrt()


def test_a_packed_model_generates_compiled_with_cuda_graphs(plain: Path, tmp_path: Path) -> None:
    config = RegistryConfig(bits=4)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=config, device_map={"": 0})
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, device_map={"": 0})
    compiled = torch.compile(again.forward, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        expected = model(IDS.cuda(), use_cache=False).logits.double()
        for _ in range(3):
            found = compiled(IDS.cuda(), use_cache=False).logits.double()
    assert (found - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()
    tokens = again.generate(IDS.cuda(), max_new_tokens=8, do_sample=False)
    assert tokens.shape == (1, 24)
