"""Packed models on which ``apply`` has put the registry's other modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from .checkpoints_written import IDS, gptq, llama

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM

    from registry.integrations.transformers import RegistryConfig, apply, load

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


def packed_llama(folder: Path) -> Any:
    llama().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=RegistryConfig(group_size=32))


def act_order(folder: Path) -> Any:
    return load(gptq(folder, shuffled=True)[0])


@pytest.mark.parametrize("make", [packed_llama, pytest.param(act_order, marks=pytest.mark.thorough)])
def test_a_packed_model_keeps_its_numbers_and_is_saved_as_before(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path / "first")
    before = {name: part.clone() for name, part in model.state_dict().items()}
    with torch.no_grad():
        expected = model(IDS).logits.double()
        apply(model)
        found = model(IDS).logits.double()
    assert (found - expected).square().mean().sqrt() < 0.02 * expected.square().mean().sqrt()
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
