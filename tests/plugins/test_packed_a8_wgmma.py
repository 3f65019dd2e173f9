"""cuda.wgmma of gemm_w4a8 and gemm_w8a8: reasons, spaces and defaults, the order of its weight, compilation."""

from __future__ import annotations

import pytest
import torch

from registry.artifact import Signature
from registry.contracts.packed_gemm_inputs import Format, packed_inputs
from registry.device import Device
from registry.packed.layout import unpack
from registry.problem import Arguments, Problem, Value
from registry.space import Config
from registry_cuda.a8_order import STEP, STRIP, packed
from registry_cuda.packed_a8_wgmma import WgmmaPackedA8

from ..tiers import THOROUGH

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
W4, W8 = WgmmaPackedA8("gemm_w4a8", 4), WgmmaPackedA8("gemm_w8a8", 8)


def problem_of(m: int, n: int, k: int, group_size: int = 128, bits: int = 4, **more: Value) -> Problem:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "activation": "int8", "zeros": "none"}
    dims |= {"act_order": False, "static": False, "bias": False, "dtype": "bfloat16"}
    traits = {"aligned": more.pop("aligned", True)}
    return Problem(f"gemm_w{bits}a8", {**dims, **more}, traits)


def config_of(tokens: int, warpgroups: int, waves: int, cluster: int = 1, stages: int = 4, resident: int = 1) -> Config:
    sizes = {"tokens": tokens, "warpgroups": warpgroups, "waves": waves}
    return {**sizes, "cluster": cluster, "stages": stages, "resident": resident}


def test_every_reason_is_given() -> None:
    odd = problem_of(3, 96, 100, 16, zeros="integer", dtype="float32", aligned=False)
    told = [reason.split()[0] for reason in W4.unsupported(odd, A100)]
    assert told == ["wgmma", "dtype", "tensors", "the", "group_size=16", "k=100", "n=96"]
    float8 = problem_of(3, 64, 128, bits=8, activation="float8_e4m3fn")
    assert [reason.split()[0] for reason in W8.unsupported(float8, H200)] == ["levels"]
    assert not list(W4.unsupported(problem_of(1, 64, 144, 144, activation="float8_e4m3fn"), H200))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 16, 33, 64, 96, 128, 192, 256, 1024, 8192])
@pytest.mark.parametrize(("n", "k"), [(28672, 4096), (4096, 14336), (64, 128)])
def test_spaces_hold_their_default_and_fit_shared_memory(bits: int, m: int, n: int, k: int) -> None:
    implementation = {4: W4, 8: W8}[bits]
    for group_size in (128, k):
        problem = problem_of(m, n, k, group_size, bits)
        space = implementation.space(problem, H200)
        assert 1 <= len(space) <= 64
        assert implementation.default(problem, H200) in space
        for config in space:
            launch = implementation.launch(problem, config, H200)
            assert launch.shared_bytes * config["resident"] <= 227 * 1024
            assert launch.grid[0] % config["cluster"] == 0


def test_one_variant_serves_all_row_counts() -> None:
    found = [W4.variants(problem_of(m, 4096, 4096), config_of(64, 2, 1), H200, NOTHING) for m in (33, 64, 1000)]
    assert len({tuple(variant.key for variant in each) for each in found}) == 1


@pytest.mark.parametrize(("bits", "float8"), [(8, False), (4, False), (4, True)])
@pytest.mark.parametrize(("n", "k"), [(128, 256), (64, 144)])
def test_each_lane_finds_the_levels_of_its_registers(bits: int, float8: bool, n: int, k: int) -> None:
    """As PTX's m64n*k32 has its 64-row operand: register 2 * half + column, byte e is k = 16 * half + 4 * t + e."""
    problem = problem_of(1, n, k, k, bits)
    qweight = packed_inputs(Format(bits, None), problem, "normal", torch.Generator().manual_seed(0))[1]
    levels = unpack(qweight, bits, k).to(torch.int64) - 2 ** (bits - 1)
    levels = torch.nn.functional.pad(levels, (0, 0, 0, -k % STEP))
    found = numbers(packed(qweight, bits, float8), bits, float8)
    # [strip, step, product, warp, g, t, half, column, byte] -> [step, product, half, t, byte, strip, warp, g, column]
    shape = (n // STRIP, levels.shape[0] // STEP, 4, 4, 8, 4, 2, 2, 4)
    ordered = found.view(shape).permute(1, 2, 6, 5, 8, 0, 3, 4, 7).reshape(levels.shape)
    assert torch.equal(ordered[:k], levels[:k])


def numbers(words: torch.Tensor, bits: int, float8: bool) -> torch.Tensor:
    """int64 ``[strips, steps, products, warps, lanes, 4, 4]``: what the kernel makes of the prepared weight's words."""
    bytes_of: torch.Tensor = words.view(torch.uint8).unflatten(-1, (4, 4)).to(torch.int64)
    if bits == 8:
        return bytes_of - 256 * (bytes_of > 127)
    halves = torch.stack([bytes_of & 15, bytes_of >> 4], 3).flatten(2, 3)
    if float8:
        # a byte of float8: a sign, and units of 2 ** -9
        made = (halves & 7) + (halves & 8) * 16 + (halves >> 3)
        units: torch.Tensor = made.to(torch.uint8).view(torch.float8_e4m3fn).double() * 512
        return units.to(torch.int64)
    return halves - 16 * (halves > 7)


COMPILED = [
    (W4, problem_of(128, 28672, 4096), config_of(128, 2, 1)),
    (W4, problem_of(64, 4096, 14336, activation="float8_e4m3fn", bias=True), config_of(64, 2, 2, 4)),
    (W8, problem_of(256, 4096, 4096, 4096, 8, static=True), config_of(256, 2, 1)),
    pytest.param(W4, problem_of(8, 4096, 4096, 32), config_of(8, 1, 1, 4, 8, 2), marks=THOROUGH),
    pytest.param(W8, problem_of(32, 4096, 4096, dtype="float16"), config_of(32, 1, 2, 2, 4, 2), marks=THOROUGH),
]
"""Those with the most sums in registers are for every change."""


@pytest.mark.parametrize(("implementation", "problem", "config"), COMPILED)
def test_what_is_compiled_does_not_spill(implementation: WgmmaPackedA8, problem: Problem, config: Config) -> None:
    (variant,) = implementation.variants(problem, config, H200, NOTHING)
    assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0
