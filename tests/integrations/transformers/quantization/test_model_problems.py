"""``tune --model --separate`` names the problems that a packed model calls, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import registry
from registry.discovery.catalog import Catalog
from registry.tuner.models.derive import derive, described
from registry.tuner.models.workload import Workload
from registry.tuner.shapes.shapes import read_shapes

from .checkpoints_written import llama

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM

    from registry.integrations.transformers import RegistryConfig

pytestmark = pytest.mark.usefixtures("late_imports")


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
