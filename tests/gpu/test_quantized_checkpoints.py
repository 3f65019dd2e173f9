"""Models packed and loaded on a GPU: one weight in full precision at a time, the CPU's weights, logits, CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("accelerate")

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from registry.integrations.transformers import RegistryConfig
from registry.nn import PackedLinear

from ..integrations.transformers.quantization.checkpoints_written import awq, compressed_tensors, gptq, llama
from ..integrations.transformers.quantization.test_experts import mixtral

pytestmark = [
    # torch's own, about float32 products of a model's rotary table, and about a part of a program without kernels
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]

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
    exact = on_cpu.dequantize().float()
    with torch.no_grad():
        logits, dense = (each(IDS.cuda()).logits.double().cpu() for each in (model, dense_model))
        right = exact(IDS).logits.double()
    own, others = ((each - right).square().mean().sqrt() for each in (logits, dense))
    # sixteen layers in bfloat16 err by some percent, packed or not
    assert own < 1.5 * others + 0.01 * right.square().mean().sqrt()


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


def on_both(folder: Path, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits on the GPU and on the CPU."""
    found = []
    for device in ({"": 0}, "cpu"):
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=RegistryConfig(**options), device_map=device
        )
        with torch.no_grad():
            found.append(model(IDS.to(model.device)).logits.double().cpu())
    return found[0], found[1]


WRITERS: dict[str, Any] = {
    "act-order": lambda folder: gptq(folder, shuffled=True),
    "awq": awq,
    "compressed-tensors": compressed_tensors,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_other_libraries_checkpoints_have_the_cpus_logits(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path)
    found, expected = on_both(tmp_path)
    assert (found - expected).square().mean().sqrt() < 0.03 * expected.square().mean().sqrt()


@pytest.mark.parametrize("activations", ["float8_e4m3fn", "int8"])
def test_weights_and_activations_of_8_bits_have_the_cpus_logits(tmp_path: Path, activations: str) -> None:
    llama().save_pretrained(tmp_path)
    found, expected = on_both(tmp_path, bits=8, activations=activations)
    # an activation may be rounded to the neighbouring level
    assert (found - expected).square().mean().sqrt() < 0.1 * expected.square().mean().sqrt()


def test_packed_experts_have_the_cpus_logits_and_are_captured(tmp_path: Path) -> None:
    mixtral().save_pretrained(tmp_path)
    found, expected = on_both(tmp_path, group_size=32)
    assert (found - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()
    config = RegistryConfig(group_size=32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config, device_map={"": 0})
    experts = model.model.layers[0].mlp.experts
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    index = torch.tensor([[0, 1], [2, 0], [1, 2], [2, 1]], device="cuda")
    weights = torch.rand(4, 2, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        eager = experts(x, index, weights)
        compiled = torch.compile(experts, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            y = compiled(x, index, weights)
    torch.testing.assert_close(y, eager, rtol=0.02, atol=0.02 * float(eager.abs().max()))
