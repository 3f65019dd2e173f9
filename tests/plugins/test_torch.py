"""torch's own operators and torch.compile are right for every op, layout and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from registry.contracts import BOX
from registry.correctness.numerics import compare, own_error, reference64
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.packed import PackedWeight, quantize
from registry.problem import Value
from registry.testing import check_implementation
from registry_torch.int8pack import CpuInt8Pack

from ..covering import covering
from ..tiers import one_of_each

OPS = tuple(op.name for op in BOX)
CPU = Device.of("cpu")

ROWS: dict[str, Value] = {
    "m": 3, "k": 96, "group_size": 32, "scale": False, "out_dtype": "int8", "dtype": "float16",
}  # fmt: skip
LEVELS: dict[str, Value] = {
    "m": 3, "n": 33, "k": 256, "group_size": 64, "zeros": "none", "act_order": False, "bias": True, "dtype": "bfloat16",
}  # fmt: skip
"""Rows with several outputs, and a product with a table of levels. tests/gpu has all that Inductor compiles."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _family(op: str) -> object:
    return op.partition("_")[0]


# of each family an op or its gradient: tests/tuner/verify has all of them in a layout or two
@pytest.mark.parametrize("op", one_of_each(OPS, _family))
@pytest.mark.few(3)
def test_torchs_own_operator_is_right_in_every_layout(catalog: Catalog, op: str) -> None:
    problems = covering(map(catalog.op(op).problem_of, catalog.op(op).examples))
    problem = problems[OPS.index(op) % len(problems)]  # so that the ops together have every dtype
    native = catalog.implementation(op, "torch.native")
    report = check_implementation(native, catalog.op(op), problems=[problem.dims], device="cpu")
    assert report.skipped == ()


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS)
def test_torchs_own_operator_is_right_for_every_example_and_layout(catalog: Catalog, op: str) -> None:
    # tests/gpu has all of the examples
    problems = covering(map(catalog.op(op).problem_of, catalog.op(op).examples))
    assert {problem.dtype for problem in problems} == {problem["dtype"] for problem in catalog.op(op).examples}
    native = catalog.implementation(op, "torch.native")
    report = check_implementation(native, catalog.op(op), problems=[problem.dims for problem in problems], device="cpu")
    assert report.skipped == ()


@pytest.mark.thorough
def test_what_inductor_makes_is_right_in_every_layout_and_size(catalog: Catalog) -> None:
    compiled = catalog.implementation("quantize_per_token", "torch.compile")
    report = check_implementation(compiled, catalog.op("quantize_per_token"), problems=[ROWS], device="cpu")
    assert report.skipped == ()


@pytest.mark.parametrize(("name", "dims"), [("quantize_per_token", ROWS), ("gemm_nf4", LEVELS)], ids=["rows", "levels"])
@pytest.mark.thorough
def test_what_inductor_makes_of_rows_and_of_a_table_of_levels_is_right(
    catalog: Catalog, name: str, dims: dict[str, Value]
) -> None:
    # once each: every layout and size would be compiled for 3 s, which is done for the rows above
    op, compiled = catalog.op(name), catalog.implementation(name, "torch.compile")
    problem = op.problem_of(dims)
    plan = None
    for kind in op.kinds:
        values = op.draw(problem, kind, torch.Generator().manual_seed(7))
        plan = plan or build(op, Candidate(compiled, {}), problem, op.arguments(values), CPU)
        reference = reference64(op, values)
        errors = own_error(op, problem, values, reference)
        verdict = compare(op, problem, op.results(plan(*values), values), reference, errors, values)
        assert verdict.ok, f"{kind}: {verdict.message}"


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_gradient_of_softmax_is_right_along_every_dimension(catalog: Catalog, dim: int) -> None:
    op, native = catalog.op("softmax_backward"), catalog.implementation("softmax_backward", "torch.native")
    grad_y, y = torch.randn(3, 5, 7), torch.randn(3, 5, 7).softmax(dim)
    for gradient in (grad_y, grad_y.mT.contiguous().mT, grad_y[:1, :1, :1].expand(3, 5, 7)):
        values = op.bind((gradient, y, dim), {})
        arguments = op.arguments(values)
        plan = build(op, Candidate(native, {}), op.pose(arguments), arguments, CPU)
        found = plan(*values)
        torch.testing.assert_close(found, op.reference(*values))
        assert found.is_contiguous()


def test_torchs_own_operator_goes_first_where_nothing_is_tuned(catalog: Catalog) -> None:
    problem = catalog.op("softmax").problem_of({"rows": 4, "cols": 64, "dtype": "float32"})
    own = catalog.implementation("softmax", "torch.native").preference(problem, CPU)
    assert own == 0.0
    assert catalog.implementation("softmax", "torch.compile").preference(problem, CPU) < own


@pytest.mark.parametrize(
    ("dtype", "symmetric", "m", "group_size"),
    [
        ("bfloat16", False, 1, 32),
        ("bfloat16", True, 5, 64),
        ("float16", False, 5, 128),
        ("float16", True, 1, 256),
    ],
)
@pytest.mark.few(2)
def test_the_cpus_packed_kernel_is_right(
    catalog: Catalog, dtype: str, symmetric: bool, m: int, group_size: int
) -> None:
    tinygemm = catalog.implementation("gemm_int4", "torch.tinygemm_cpu")
    dims: dict[str, Value] = {"n": 64, "k": 256, "bits": 4, "dtype": dtype, "symmetric": symmetric, "m": m}
    problem = {**dims, "group_size": group_size}
    report = check_implementation(tinygemm, catalog.op("gemm_int4"), problems=[problem], device="cpu")
    assert report.checked


def test_the_packed_kernels_say_why_they_cannot(catalog: Catalog) -> None:
    dims: dict[str, Value] = {
        "m": 1,
        "n": 33,
        "k": 136,
        "group_size": 136,
        "bits": 4,
        "dtype": "float16",
        "symmetric": True,
    }
    problem = catalog.op("gemm_int4").problem_of(dims)
    hopper = Device("cuda", 0, "an H200", "sm_90", 132, 2**37, 2**25)
    reasons = list(catalog.implementation("gemm_int4", "torch.tinygemm").unsupported(problem, hopper))
    assert reasons == [
        "dtype is float16, expected bfloat16",
        "group_size is 136, expected one of 32, 64, 128, 256",
        "n=33 is no multiple of 8",
        "k=136 is no multiple of 32",
    ]
    reasons = list(catalog.implementation("gemm_int4", "torch.tinygemm_cpu").unsupported(problem, CPU))
    assert reasons == ["group_size is 136, expected one of 32, 64, 128, 256", "n=33 is no multiple of 16"]


def _packed_plan(catalog: Catalog, weight: PackedWeight, a: torch.Tensor) -> Any:
    op = catalog.op("gemm_int4")
    arguments = op.arguments(op.bind((a, weight), {}))
    candidate = Candidate(catalog.implementation("gemm_int4", "torch.tinygemm_cpu"), {})
    return build(op, candidate, op.pose(arguments), arguments, CPU)


def test_a_weight_is_repacked_once_and_again_when_it_changes(catalog: Catalog) -> None:
    op, a = catalog.op("gemm_int4"), torch.randn(2, 3, 128, dtype=torch.bfloat16)
    weight = quantize(torch.randn(64, 128, dtype=torch.bfloat16), group_size=64)
    plan = _packed_plan(catalog, weight, a)
    values = op.bind((a, weight), {})
    y = plan(*values)
    assert y.shape == (2, 3, 64)
    assert [tensor.data_ptr() for tensor in plan.prepared.extend(values)[-2:]] == [
        tensor.data_ptr() for tensor in plan.prepared.extend(values)[-2:]
    ]
    weight.qweight.bitwise_not_()
    changed = plan(*values)
    expected = a.double() @ weight.dequantize().double().T
    torch.testing.assert_close(changed.double(), expected, rtol=2e-2, atol=2e-1)
    assert not torch.allclose(y, changed)


@pytest.mark.parametrize("inner_k_tiles", [2, 4, 8])
def test_the_gpus_packing_has_its_shape_without_data(catalog: Catalog, inner_k_tiles: int) -> None:
    op = catalog.op("gemm_int4")
    dims: dict[str, Value] = {
        "m": 1,
        "n": 64,
        "k": 256,
        "group_size": 64,
        "bits": 4,
        "dtype": "bfloat16",
        "symmetric": False,
    }
    problem = op.problem_of(dims)
    tinygemm, config = catalog.implementation("gemm_int4", "torch.tinygemm"), {"inner_k_tiles": inner_k_tiles}
    meta = torch.empty(32, 64, dtype=torch.int32, device="meta")
    packed = tinygemm.prepare("packed", (meta,), problem, config)
    # torch's own kernel for meta tensors agrees
    raw = torch.empty(64, 128, dtype=torch.uint8, device="meta")
    assert packed.shape == torch.ops.aten._convert_weight_to_int4pack(raw, inner_k_tiles).shape
    scales = torch.empty(4, 64, dtype=torch.bfloat16, device="meta")
    assert tinygemm.prepare("scales_and_zeros", (scales, scales), problem, config).shape == (4, 64, 2)


def test_nibbles_are_swapped_into_rows_of_n() -> None:
    from registry_torch.int4 import swapped_nibbles, unpacked

    weight = quantize(torch.randn(24, 64), group_size=32)
    q = unpacked(weight.qweight)
    rows = swapped_nibbles(weight.qweight)
    assert rows.shape == (24, 32)
    assert torch.equal(rows >> 4, q.T[:, 0::2].to(torch.uint8))
    assert torch.equal(rows & 15, q.T[:, 1::2].to(torch.uint8))


def test_int8pack_takes_activations_wherever_they_start() -> None:
    op, implementation = next(op for op in BOX if op.name == "gemm_int8"), CpuInt8Pack()
    dims: dict[str, Value] = {
        "m": 64,
        "n": 80,
        "k": 288,
        "group_size": 288,
        "zeros": "none",
        "act_order": False,
        "bias": True,
    }
    problem = op.problem_of({**dims, "dtype": "bfloat16"})
    a, *rest = op.inputs(problem, "normal", torch.Generator().manual_seed(0))
    room = torch.zeros(a.numel() + 8, dtype=a.dtype)
    moved = room[8:].view(a.shape).copy_(a)
    plan = build(op, Candidate(implementation, {}), problem, op.arguments((moved, *rest)), CPU)
    torch.testing.assert_close(plan(moved, *rest), op.reference(a, *rest), rtol=0.05, atol=0.05)


def test_grouped_products_of_experts_name_the_sizes_that_they_refuse(catalog: Catalog) -> None:
    op, implementation = catalog.op("fused_moe"), catalog.implementation("fused_moe", "torch.grouped_mm")
    sizes: dict[str, Value] = {"tokens": 4, "hidden": 33, "intermediate": 20, "experts": 3, "top_k": 2}
    choice: dict[str, Value] = {"activation": "silu", "routing": "uniform", "dtype": "bfloat16"}
    found = list(implementation.unsupported(op.problem_of({**sizes, **choice}), Device.of("cpu")))
    assert [reason.partition(" elements")[0] for reason in found] == [
        "hidden=33: rows of hidden", "intermediate=20: rows of intermediate",
    ]  # fmt: skip


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_rounds_once_to_bfloat16_along_every_dimension(catalog: Catalog, dim: int) -> None:
    op, native = catalog.op("softmax"), catalog.implementation("softmax", "torch.native")
    x = torch.randn(37, 2000, generator=torch.Generator().manual_seed(1)).bfloat16()
    values = op.bind((x, dim), {})
    arguments = op.arguments(values)
    problem = op.pose(arguments)
    reference = reference64(op, values)
    found = build(op, Candidate(native, {}), problem, arguments, CPU)(*values)
    judged = compare(op, problem, found, reference, own_error(op, problem, values, reference), values)
    assert judged.ok, judged.message
