"""Packed projections of keys and values are multiplied out once there are more latents than these have elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ...op_counts import OpCounts
from ...tiny_models import tiny
from .decoding import PART, decoded, filled, static, steps

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers import apply
    from registry.integrations.transformers.forwards.latents.projections import projection

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

MODES = ("int4", "int8", "nf4", "fp8", "w8a8", "w4a8")


def packed(mode: Any, **changes: Any) -> tuple[Any, Any]:
    sizes = {"hidden_size": 64, "kv_lora_rank": 32, "q_lora_rank": 32, "num_hidden_layers": 1, "v_head_dim": 32}
    model = tiny("deepseek_v3", torch.bfloat16, **sizes, qk_nope_head_dim=32, **changes)
    grouped = {} if mode in {"fp8", "w8a8"} else {"group_size": 32}
    return model, apply(model, quantize=mode, **grouped)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.few(2)
def test_one_token_over_latents_is_as_exact_as_over_expanded_keys(mode: str) -> None:
    model, report = packed(mode)
    assert any(part.startswith(PART) for part in report.replaced)
    layer = model.model.layers[0].self_attn.kv_b_proj
    weight = projection(layer, torch.zeros(1, dtype=torch.bfloat16))
    dense = layer.dequantize(torch.bfloat16) if hasattr(layer, "dequantize") else layer.weight.dequantize()
    assert weight is not None
    # products of 4 bits take zero points off a sum
    torch.testing.assert_close(weight, dense, atol=1e-4, rtol=1.6e-2)
    found = []
    for length in (32, 16):
        # two sequences of 32 have more latents than 32, and of 16 as many
        with decoded() as calls:
            found.append(steps(model, filled(model, static(model, length))))
        assert len(calls) == (3 if length == 32 else 0)
    assert (found[0] - found[1]).norm() < 0.02 * found[1].norm()


@pytest.mark.thorough
@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize("mode", ["int4", "fp8"])
def test_a_compiled_step_multiplies_the_projection_out(mode: str) -> None:
    model, _ = packed(mode)
    right, counts = steps(model, filled(model, static(model))), OpCounts()
    step = torch.compile(model, fullgraph=True, backend=counts)
    torch.testing.assert_close(steps(model, filled(model, static(model)), step=step), right, atol=2e-2, rtol=2e-2)
    assert counts.graphs[0]["mla_decode"] == 1
