"""The problems that ``tune --model --training`` derives are those that a training step of an applied model calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import registry
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.models.derive import derive, described
from registry.tuner.models.workload import Workload
from registry.tuner.shapes.shapes import read_shapes

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers import apply

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

BATCH, LENGTH = 2, 11


def derived_and_called(family: str, folder: Path, *, checkpointing: bool = False) -> list[dict[Problem, int]]:
    """The counts of problems of one training step: by the model's config, and by what it called."""
    box, model = Catalog(), tiny(family, torch.bfloat16).train()
    model.config.save_pretrained(folder)
    derived = derive(described(str(folder)), Workload((BATCH,), (LENGTH,), training=True), box)
    assert derived.notes == ()
    apply(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = prompt(BATCH, LENGTH)
    with registry.record(folder / "called.yaml"):
        model(tokens, labels=tokens, use_cache=False).loss.backward()
    return [dict(each.counts) for each in (derived.shapes, read_shapes(folder / "called.yaml", box))]


def _is_called(problem: Problem) -> bool:
    """False for embeddings, which stay transformers' own, and for the masked attention of traced models."""
    return not problem.op.startswith("embedding") and problem.dims.get("mask") != "bool"


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("qwen3", "phi3"))]
)
def test_they_are_called_as_often_as_derived(family: str, tmp_path: Path) -> None:
    derived, called = derived_and_called(family, tmp_path)
    assert {problem: count for problem, count in derived.items() if _is_called(problem)} == called
    assert {
        "fused_linear_cross_entropy_gradients",
        "apply_rotary",
        "apply_rotary_backward",
        "silu_and_mul_backward",
        "attention_backward",
        "linear_backward",
    } <= {problem.op for problem in called}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_layers_that_are_computed_again_call_no_other_problems(tmp_path: Path) -> None:
    derived, called = derived_and_called("llama", tmp_path, checkpointing=True)
    assert {problem for problem in derived if _is_called(problem)} == called.keys()
    assert all(called[problem] >= count for problem, count in derived.items() if problem in called)
