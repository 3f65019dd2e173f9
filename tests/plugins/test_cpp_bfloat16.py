"""C++ products of activations and levels that bfloat16 holds: AMX tiles, and dot products of pairs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Launch
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing import check_implementation
from registry_cpp.cpu_features import missing
from registry_cpp.gemm_int4 import CppGemmInt4
from registry_cpp.weight_products import AmxWeightProduct, DotWeightProduct, PairedWeight, _WeightProduct
from registry_torch.tinygemm import CpuTinygemm

OPS = {op.name: op for op in BOX}
CPU = Device.of("cpu")
Dims = Mapping[str, Value]


BITS = {"gemm_int4": 4, "gemm_int8": 8, "gemm_int2": 2, "gemm_int1": 1, "gemm_w4a16": 4, "gemm_nf4": 4, "linear": 16}
INT4: Dims = {"n": 33, "k": 384, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}
PACKED: Dims = {"n": 33, "k": 200, "group_size": 32, "zeros": "float", "act_order": True, "bias": True}
NF4: Dims = {"n": 40, "k": 192, "group_size": 64, "zeros": "none", "act_order": False, "bias": False}
FORMATS: dict[str, tuple[str, Dims]] = {
    "int4": ("gemm_int4", INT4),
    "int8": ("gemm_int8", {**PACKED, "dtype": "float32"}),
    "int2": ("gemm_int2", {**PACKED, "group_size": 16, "zeros": "integer", "dtype": "float16"}),
    "int1": ("gemm_int1", {**PACKED, "group_size": 16, "dtype": "bfloat16"}),
    "w4": ("gemm_w4a16", {**PACKED, "dtype": "bfloat16"}),
    "nf4": ("gemm_nf4", {**NF4, "dtype": "bfloat16"}),
    "dense": ("linear", {"n": 33, "k": 101, "bias": True, "dtype": "bfloat16"}),
}


def form(name: str, op: str) -> _WeightProduct:
    """The implementation of an op; skips where the CPU has not what it needs."""
    if absent := missing("amx_bf16" if name == "amx" else "avx512_bf16", "avx512bw"):
        pytest.skip(absent)
    weight = PairedWeight(op, BITS[op], op == "gemm_nf4")
    return AmxWeightProduct(weight) if name == "amx" else DotWeightProduct(weight)


@pytest.mark.parametrize(
    ("name", "formats", "rows"),
    [
        *(("amx", one, (1, 17)) for one in FORMATS if one not in ("int4", "dense")),
        ("amx", "int4", (3, 17, 70, 130)),
        ("amx", "dense", (1, 35, 70)),
        *(("dot", one, (3,)) for one in ("int8", "dense")),
        ("dot", "w4", (13, 33)),
        # tests/tuner/verify has as many rows of it, and int8 the loops at an odd size
        pytest.param("dot", "int4", (3,), marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_each_format_is_right_at_odd_sizes(name: str, formats: str, rows: tuple[int, ...]) -> None:
    op, dims = FORMATS[formats]
    problems = [{**dims, "m": m} for m in rows]
    assert check_implementation(form(name, op), OPS[op], problems=problems, device="cpu").ok


def test_every_configuration_of_tiles_gives_the_same_bits() -> None:
    op, implementation = OPS["gemm_int4"], form("amx", "gemm_int4")
    problem = op.problem_of({**INT4, "m": 130})
    values = op.inputs(problem, "normal", torch.Generator().manual_seed(3))
    found = [
        build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)(*values)
        for config in implementation.space(problem, CPU)
    ]
    assert len(found) >= 9
    assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize("name", ["amx", "dot"])
def test_defaults_are_in_the_space(name: str) -> None:
    for op, dims in FORMATS.values():
        for m in (1, 3, 8, 33, 200):
            problem, implementation = OPS[op].problem_of({**dims, "m": m}), form(name, op)
            assert not implementation.space(problem, CPU).violations(implementation.default(problem, CPU))


def test_an_infinite_activation_is_not_taken_for_nan_by_its_pieces() -> None:
    op, implementation = OPS["gemm_int8"], form("amx", "gemm_int8")
    problem = op.problem_of({**PACKED, "zeros": "none", "act_order": False, "dtype": "float32", "m": 2})
    values = op.inputs(problem, "normal", torch.Generator().manual_seed(3))
    values[0][0, 7] = torch.inf
    config = implementation.default(problem, CPU)
    y = build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)(*values)
    expected = op.reference(*values)
    assert torch.equal(y[0].isnan(), expected[0].isnan())
    assert torch.equal(y[0].sign(), expected[0].sign())
    assert y[1].isfinite().all()


def test_numbers_that_bfloat16_does_not_hold_are_refused() -> None:
    for op, dims in (FORMATS["nf4"], FORMATS["dense"]):
        problem = OPS[op].problem_of({**dims, "m": 1, "dtype": "float32"})
        told = "; ".join(form("amx", op).unsupported(problem, CPU))
        assert "float32: bfloat16 does not hold the weight's numbers" in told


@pytest.mark.parametrize("m", [2, 9, 64, 300])
def test_without_tiles_dot_products_are_tried_before_kernels_that_decode_for_every_few_tokens(m: int) -> None:
    dot = form("dot", "gemm_int4")
    problem = OPS["gemm_int4"].problem_of({**INT4, "m": m})
    assert not list(dot.unsupported(problem, CPU))
    tiles = AmxWeightProduct(PairedWeight("gemm_int4", 4))
    preferences = [one.preference(problem, CPU) for one in (tiles, dot, CppGemmInt4(), CpuTinygemm())]
    assert preferences == sorted(preferences, reverse=True)
    in_pieces = OPS["gemm_int4"].problem_of({**INT4, "m": m, "dtype": "float16"})
    assert dot.preference(in_pieces, CPU) < CppGemmInt4().preference(in_pieces, CPU)


def on_avx2(launch: Launch) -> Launch:
    """The launch as a CPU without AVX-512 compiles it."""
    return Launch(launch.kernel, launch.grid, launch.args, launch.constants, {"flags": ["-march=x86-64-v3"]})


class Avx2Int4(CppGemmInt4):
    """gemm_int4 on AVX2."""

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return on_avx2(super().launch(problem, config, device))


@pytest.mark.skipif(bool(missing("avx2")), reason="names an x86-64 instruction set")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.thorough
def test_weights_are_right_on_avx2() -> None:
    assert check_implementation(Avx2Int4(), OPS["gemm_int4"], problems=[{**INT4, "m": 3}], device="cpu").ok
