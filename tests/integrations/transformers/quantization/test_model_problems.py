"""``tune --model --separate`` names the problems that a packed model calls, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import registry
from registry.discovery.catalog import Catalog
from registry.tuner.models.derive import derive, described
from registry.tuner.models.workload import Workload
from registry.tuner.shapes.shapes import read_shapes

from ....tiers import one_of_each
from .checkpoints_written import llama

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    from registry.integrations.transformers import RegistryConfig, apply

pytestmark = pytest.mark.usefixtures("late_imports")


def test_a_packed_gpt2_calls_the_derived_products(tmp_path: Path) -> None:
    config = GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=96, n_positions=32, bos_token_id=1, eos_token_id=2)
    config.save_pretrained(tmp_path)
    model = GPT2LMHeadModel(config).bfloat16().eval()
    apply(model, quantize="int4")
    recorded, catalog = tmp_path / "recorded.yaml", Catalog()
    with registry.record(recorded), torch.no_grad():
        model.generate(torch.arange(3, 27).view(3, 8), max_new_tokens=2, do_sample=False, eos_token_id=None)
    found = derive(described(str(tmp_path)), Workload((3,), (8,), quantize="int4"), catalog, ["gemm_int4"])
    assert set(read_shapes(recorded, catalog, ["gemm_int4"]).all) == set(found.shapes.all)


@pytest.mark.parametrize("kind", one_of_each(["int4", "nf4", "int2"]))
def test_a_model_with_a_packed_head_calls_the_derived_products(kind: Any, tmp_path: Path) -> None:
    plain = llama(num_hidden_layers=1, attention_bias=False).bfloat16().eval()
    plain.save_pretrained(tmp_path)
    apply(plain, quantize=kind, group_size=32, symmetric=True, lm_head=True)
    recorded, catalog, op = tmp_path / "recorded.yaml", Catalog(), f"gemm_{kind}"
    with registry.record(recorded), torch.no_grad():
        plain.generate(torch.arange(3, 27).view(3, 8), max_new_tokens=2, do_sample=False, eos_token_id=None)
    workload = Workload((3,), (8,), quantize=kind, group_size=32, symmetric=True, lm_head=True)
    found = derive(described(str(tmp_path)), workload, catalog, [op])
    assert set(read_shapes(recorded, catalog, [op]).all) == set(found.shapes.all)


@pytest.mark.thorough
def test_a_packed_model_calls_the_derived_problems(tmp_path: Path) -> None:
    llama(num_hidden_layers=2, attention_bias=False).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=RegistryConfig(group_size=32))
    recorded, catalog = tmp_path / "recorded.yaml", Catalog()
    with registry.record(recorded), torch.no_grad():
        # one token from the prompt, one from a decode step
        model.generate(torch.arange(3, 27).view(3, 8), max_new_tokens=2, do_sample=False, eos_token_id=None)
    workload = Workload((3,), (8,), separate=True, quantize="int4", group_size=32)
    found = derive(described(str(tmp_path)), workload, catalog, ["gemm_int4"])
    assert set(read_shapes(recorded, catalog, ["gemm_int4"]).all) == set(found.shapes.all)
