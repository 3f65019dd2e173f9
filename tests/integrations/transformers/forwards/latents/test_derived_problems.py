"""``tune --model`` names the problems that a decode step over latents calls."""

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

from ...tiny_models import cache_name, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers

    from registry.integrations.transformers import apply

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

OPS = ["linear", "mla_decode", "rotary_embedding"]


@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v2"])
def test_a_decode_step_calls_the_derived_problems(family: str, tmp_path: Path) -> None:
    model, tokens = tiny(family, torch.bfloat16), prompt()
    model.config.save_pretrained(tmp_path)
    apply(model)
    room = 64
    given = {cache_name(model): transformers.StaticCache(config=model.config, max_cache_len=room)}
    recorded, catalog = tmp_path / "recorded.yaml", Catalog()
    with torch.no_grad():
        model(tokens, **given)
        with registry.record(recorded):
            model(tokens[:, :1], **given)
    called = set(read_shapes(recorded, catalog, OPS).all)
    found = set(derive(described(str(tmp_path)), Workload((len(tokens),), (room,)), catalog, OPS).shapes.all)
    assert {problem.op for problem in called} == set(OPS)
    assert not called - found
    config = model.config
    expanded = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
    products = {(problem.n, problem.k) for problem in found if problem.op == "linear" and problem.m == len(tokens)}
    assert (expanded, config.kv_lora_rank) not in products
