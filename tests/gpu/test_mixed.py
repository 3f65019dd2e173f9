"""On a GPU: halves beside float32, and gradients of rms_norm that nobody needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry.contract import as_tuple
from registry.correctness.numerics import reference64
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

MIXED = [
    (op, one.name)
    for op in ("vector_add", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward")
    for one in Catalog().implementations(op)
    if one.mixed and "cuda" in one.device_types
]


def checked(catalog: Catalog, op_name: str, name: str, values: tuple[Any, ...]) -> None:
    op, implementation, device = catalog.op(op_name), catalog.implementation(op_name, name), Device.of("cuda")
    arguments = op.arguments(values)
    problem = op.pose(arguments)
    assert not list(implementation.unsupported(problem, device))
    config = implementation.default(problem, device)
    plan = build(op, Candidate(implementation, config), problem, arguments, device)
    found, told = as_tuple(plan(*values)), op.output_specs(arguments, device.torch)
    for one, right, spec in zip(found, reference64(op, values), told.values(), strict=True):
        assert (one.shape, one.dtype) == (right.shape, spec.dtype)
        if one.numel():
            limit = 8 * torch.finfo(one.dtype).eps
            least = limit * right.square().mean().sqrt().item()
            torch.testing.assert_close(one.double(), right, rtol=limit, atol=least)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("op_name", "name"), MIXED)
def test_halves_beside_float32(catalog: Catalog, op_name: str, name: str, dtype: torch.dtype) -> None:
    op = catalog.op(op_name)
    # columns that every form has a configuration for
    long = {"cuda.row": 4096, "triton.row": 4096}.get(name, 16_384)
    dims: dict[str, Value] = {"n": 70_001} if op_name == "vector_add" else {"rows": 33, "cols": long}
    dims |= dict.fromkeys(op.choices, True)
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = op.draw(op.problem_of({**dims, "dtype": "float32"}), "normal", generator)
    values = tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) and each not in op.alike else value
        for each, value in zip(op.parsed.names, drawn, strict=True)
    )
    checked(catalog, op_name, name, values)


@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=str)
@pytest.mark.parametrize("name", ["torch.native", "torch.compile", "triton.row", "triton.columns"])
def test_one_gradient_of_rms_norm_alone(catalog: Catalog, name: str, needs: tuple[bool, bool]) -> None:
    op = catalog.op("rms_norm_backward")
    problem = op.problem_of({"rows": 333, "cols": 4096, "dtype": "bfloat16"})
    drawn = op.draw(problem, "normal", torch.Generator("cuda").manual_seed(0))
    checked(catalog, op.name, name, (*drawn[:4], *needs))
