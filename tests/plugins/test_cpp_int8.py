"""C++ products of int8 activations: AMX tiles, and dot products of each instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Value
from registry.testing import check_implementation
from registry_cpp.cpu_features import missing
from registry_cpp.int8_products import ISAS, AmxInt8Product, DotInt8Product, Int8Weight, _Int8Product

OPS = {op.name: op for op in BOX}
CPU = Device.of("cpu")
FORMS = ("amx", *ISAS)
Dims = Mapping[str, Value]


def form(name: str, op: str) -> _Int8Product:
    """The implementation of an op by the name of its instruction set; skips where the CPU has not."""
    weight = Int8Weight(op, 4 if op == "gemm_w4a8" else 8)
    implementation = AmxInt8Product(weight) if name == "amx" else DotInt8Product(weight, name)
    if absent := missing("amx_int8", "avx512bw") if name == "amx" else missing(name):
        pytest.skip(absent)
    return implementation


A8: Dims = {"activation": "int8", "act_order": False, "dtype": "bfloat16"}
GROUPS: tuple[Dims, ...] = tuple(
    {**A8, "m": m, "n": n, "k": k, "group_size": size, "zeros": "float", "static": False, "bias": True}
    for m, n, k, size in (
        (1, 72, 512, 256),
        (3, 33, 200, 16),
        (17, 40, 200, 32),
        (70, 33, 192, 64),
        (130, 40, 384, 128),
    )
)
COLUMNS: tuple[Dims, ...] = tuple(
    {**A8, "m": m, "n": n, "k": k, "group_size": k, "zeros": "none", "static": False, "bias": False}
    for m, n, k in ((1, 40, 100), (3, 17, 1000), (17, 33, 64), (70, 72, 1100))
)
BLOCKS: tuple[Dims, ...] = tuple(
    {"m": m, "n": n, "k": k, "scales": "block", "bias": True, "out_dtype": "float32", "dtype": "int8"}
    for m, n, k in ((3, 200, 300), (35, 33, 130))
)


@pytest.mark.parametrize(
    ("name", "op", "problems"),
    [
        # gemm_w4a8's own problem of its implementations is checked in tests/tuner/verify
        pytest.param("avx2", "gemm_w4a8", GROUPS[2:4], marks=pytest.mark.thorough),
        ("avx2", "gemm_w8a8", COLUMNS[1:2]),
        pytest.param("avx2", "gemm_w8a8", COLUMNS[2:3], marks=pytest.mark.thorough),
        # its tiles are avx2's, and its products are tested by the sums of each form
        pytest.param("avx_vnni", "gemm_w8a8", COLUMNS[1:3], marks=pytest.mark.thorough),
        # amx's has the same loop over groups
        pytest.param("avx512_vnni", "gemm_w4a8", GROUPS[1:4], marks=pytest.mark.thorough),
        ("avx512_vnni", "scaled_mm", BLOCKS[1:]),
        ("amx", "gemm_w4a8", GROUPS),
        ("amx", "gemm_w8a8", COLUMNS[1:]),
        ("amx", "scaled_mm", BLOCKS),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.few(1)
def test_odd_sizes_and_all_groups_are_right(name: str, op: str, problems: tuple[Dims, ...]) -> None:
    assert check_implementation(form(name, op), OPS[op], problems=problems, device="cpu").ok


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.few(2)
def test_sums_of_int8_are_exact(name: str) -> None:
    op, m, k = OPS["scaled_mm"], 35, 1000
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-128, 128, (rows, k), generator=generator).to(torch.int8) for rows in (m, 33))
    a[0], b[0] = -128, -128
    values = (a, b, torch.ones(1), torch.ones(1), None, "float32")
    implementation, arguments = form(name, "scaled_mm"), op.arguments(values)
    problem = op.pose(arguments)
    plan = build(op, Candidate(implementation, implementation.default(problem, CPU)), problem, arguments, CPU)
    # 2^24 is more than any of these sums: float32 holds them
    assert torch.equal(plan(*values), (a.long() @ b.long().T).float())


@pytest.mark.parametrize("name", FORMS)
def test_every_configuration_is_in_the_space_that_its_registers_hold(name: str) -> None:
    implementation = form(name, "gemm_w4a8")
    for dims in (*GROUPS, {**GROUPS[0], "m": 5}):
        problem = OPS["gemm_w4a8"].problem_of(dims)
        space = implementation.space(problem, CPU)
        assert not space.violations(implementation.default(problem, CPU))
        assert len(space) <= 40


def test_every_configuration_of_tiles_gives_the_same_bits() -> None:
    op, implementation = OPS["gemm_w4a8"], form("amx", "gemm_w4a8")
    problem = op.problem_of({**GROUPS[4], "group_size": 384})
    values = op.inputs(problem, "normal", torch.Generator().manual_seed(3))
    found = [
        build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)(*values)
        for config in implementation.space(problem, CPU)
    ]
    assert len(found) >= 9
    assert all(torch.equal(y, found[0]) for y in found)


def test_forms_of_an_op_share_the_panels() -> None:
    weight = Int8Weight("gemm_w8a8", 8)
    assert AmxInt8Product(weight).prepared_by is DotInt8Product(weight).prepared_by
    problem = OPS["gemm_w8a8"].problem_of(COLUMNS[3])
    values = OPS["gemm_w8a8"].inputs(problem, "normal", torch.Generator().manual_seed(3))
    panels = weight.prepare("panels", (values[2],), problem)
    # as many bytes as the weight, but for 72 columns filled to 96 and 1100 elements to 1152
    assert panels.nbytes == 96 * 1152


@pytest.mark.parametrize("name", ["amx", "avx2"])
def test_other_activations_and_layouts_are_refused(name: str) -> None:
    op, implementation = OPS["scaled_mm"], form(name, "scaled_mm")
    problem = op.problem_of({**BLOCKS[0], "dtype": "float8_e4m3fn"})
    assert "the activations are float8_e4m3fn, expected int8" in "; ".join(implementation.unsupported(problem, CPU))
