"""cuda.wgmma of packed weights: reasons, spaces and defaults, the order of levels, compilation."""

from __future__ import annotations

import pytest
import torch

from registry.artifact import Signature
from registry.contracts.packed_gemm_inputs import Format, packed_inputs
from registry.device import Device
from registry.packed.layout import unpack
from registry.problem import Arguments, Problem, Value
from registry.space import Config
from registry_cuda.packed_order import STEP, STRIP, packed
from registry_cuda.packed_wgmma import WgmmaPacked

from ..tiers import THOROUGH

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
W4, W8 = WgmmaPacked("gemm_w4a8", 4), WgmmaPacked("gemm_w8a8", 8)
INT8, INT2, INT1 = WgmmaPacked("gemm_int8", 8), WgmmaPacked("gemm_int2", 2), WgmmaPacked("gemm_int1", 1)
W4A16 = WgmmaPacked("gemm_w4a16", 4)


def problem_of(
    implementation: WgmmaPacked, m: int, n: int, k: int, group_size: int = 128, *, aligned: bool = True, **more: Value
) -> Problem:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "group_size": group_size, "zeros": "none"}
    dims |= {"act_order": False, "bias": False, "dtype": "bfloat16"}
    if implementation.op.endswith("a8"):
        dims |= {"activation": "int8", "static": False}
    return Problem(implementation.op, {**dims, **more}, {"aligned": aligned})


def config_of(tokens: int, warpgroups: int, waves: int, cluster: int = 1, stages: int = 4, resident: int = 1) -> Config:
    sizes = {"tokens": tokens, "warpgroups": warpgroups, "waves": waves}
    return {**sizes, "cluster": cluster, "stages": stages, "resident": resident}


def test_every_reason_is_given() -> None:
    odd = problem_of(W4, 3, 96, 100, 16, zeros="integer", dtype="float32", aligned=False)
    told = [reason.split()[0] for reason in W4.unsupported(odd, A100)]
    assert told == ["wgmma", "dtype", "tensors", "the", "group_size=16", "k=100", "n=96"]
    float8 = problem_of(W8, 3, 64, 128, activation="float8_e4m3fn")
    assert [reason.split()[0] for reason in W8.unsupported(float8, H200)] == ["levels"]
    ordered = problem_of(INT8, 3, 64, 128, zeros="float", act_order=True)
    assert [reason.split()[3] for reason in INT8.unsupported(ordered, H200)] == ["act-order:", "zero"]
    assert not list(W4.unsupported(problem_of(W4, 1, 64, 144, 144, activation="float8_e4m3fn"), H200))
    assert not list(INT2.unsupported(problem_of(INT2, 1, 64, 144, 32, zeros="integer"), H200))


@pytest.mark.parametrize("implementation", [W4, W8, INT8, INT2, INT1, W4A16], ids=lambda one: one.op)
@pytest.mark.parametrize("m", [1, 16, 33, 64, 128, 192, 1024, 8192])
@pytest.mark.few(16)
def test_spaces_hold_their_default_and_fit_shared_memory(implementation: WgmmaPacked, m: int) -> None:
    for n, k in ((28672, 4096), (4096, 14336), (64, 128)):
        for group_size in (64, k):
            problem = problem_of(implementation, m, n, k, group_size)
            space = implementation.space(problem, H200)
            assert 1 <= len(space) <= 60
            assert implementation.default(problem, H200) in space
            for config in space:
                launch = implementation.launch(problem, config, H200)
                assert launch.shared_bytes * config["resident"] <= 227 * 1024
                assert launch.grid[0] % config["cluster"] == 0


def test_one_variant_serves_all_row_counts() -> None:
    found = [W4.variants(problem_of(W4, m, 4096, 4096), config_of(64, 2, 1), H200, NOTHING) for m in (33, 64, 1000)]
    assert len({tuple(variant.key for variant in each) for each in found}) == 1


ORDERS = [(8, 8, False), (4, 8, False), (4, 8, True), (8, 16, False), (4, 16, False), (2, 16, False), (1, 16, False)]
"""Bits of a level and of an activation, and whether the latter is float8."""


@pytest.mark.parametrize(("bits", "activation_bits", "float8"), ORDERS)
@pytest.mark.parametrize(("n", "k"), [(128, 256), (64, 144)])
def test_each_lane_finds_the_levels_of_its_registers(
    bits: int, activation_bits: int, float8: bool, n: int, k: int
) -> None:
    """As PTX has the 64-row operand of m64n*k32 and of m64n*k16; what is added behind K is any level."""
    problem = Problem("", {"m": 1, "n": n, "k": k, "group_size": k, "zeros": "none", "act_order": False, "bias": False,
                           "dtype": "bfloat16"})  # fmt: skip
    qweight = packed_inputs(Format(bits, None), problem, "normal", torch.Generator().manual_seed(0))[1]
    levels = unpack(qweight, bits, k).to(torch.int64)
    words = packed(qweight, k, bits, activation_bits, float8=float8)
    if activation_bits == 8:
        levels = levels - 2 ** (bits - 1)
        # [strip, step, product, warp, g, t, half, column, byte]: k = 32 * product + 16 * half + 4 * t + byte
        found = of_bytes(words, bits, float8).view(n // STRIP, -1, 4, 4, 8, 4, 2, 2, 4)
        ordered = found.permute(1, 2, 6, 5, 8, 0, 3, 4, 7)
    else:
        # [strip, step * piece, product, warp, g, t, half, column, odd]: k = 16 * product + 8 * half + 2 * t + odd
        found = of_halves(words, bits).view(n // STRIP, -1, 4, 4, 8, 4, 2, 2, 2)
        ordered = found.permute(1, 2, 6, 5, 8, 0, 3, 4, 7)
    assert ordered.numel() == n * -(-k // STEP) * STEP
    assert torch.equal(ordered.reshape(-1, n)[:k], levels)


def of_bytes(words: torch.Tensor, bits: int, float8: bool) -> torch.Tensor:
    """int64 ``[strip, step, product, warp, lane, register, byte]``, flat: what the kernel makes of the words."""
    lanes: torch.Tensor = words.view(words.shape[0], -1, 4, 32, 4).view(torch.uint8).unflatten(-1, (4, 4))
    bytes_of = lanes.to(torch.int64)
    if bits == 8:
        return bytes_of - 256 * (bytes_of > 127)
    halves = torch.stack([bytes_of & 15, bytes_of >> 4], 2)
    if float8:
        # a byte of float8: a sign, and units of 2 ** -9
        made = (halves & 7) + (halves & 8) * 16 + (halves >> 3)
        units: torch.Tensor = made.to(torch.uint8).view(torch.float8_e4m3fn).double() * 512
        return units.to(torch.int64)
    return halves - 16 * (halves > 7)


def of_halves(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int64 ``[strip, piece, product, warp, lane, register, half]``, flat: the shifts of packed_wgmma.cu."""
    vectors, size = (2, 4) if bits == 8 else (1, bits)
    lanes = words.view(words.shape[0], -1, vectors, 128, size).to(torch.int64) & 0xFFFFFFFF
    mask, made = (1 << bits) - 1, []
    for product in range(4):
        for register in range(4):
            if bits == 8:
                word = lanes[:, :, product // 2, :, product % 2 * 2 + register // 2]
                shift = 8 * (register % 2)
            else:
                word = lanes[:, :, 0, :, product * bits // 4]
                shift = product % (4 // bits) * 4 * bits + register * bits
            made += [word >> shift & mask, word >> (shift + 16) & mask]
    # [strip, piece, lane, product, register, half] -> products before lanes
    products: torch.Tensor = torch.stack(made, -1).unflatten(-1, (4, 4, 2)).permute(0, 1, 3, 2, 4, 5)
    return products.contiguous()


COMPILED = [
    (W4, problem_of(W4, 128, 28672, 4096), config_of(128, 2, 2)),
    (W4, problem_of(W4, 64, 4096, 14336, activation="float8_e4m3fn", bias=True), config_of(64, 2, 2, 4)),
    (W8, problem_of(W8, 256, 4096, 4096, 4096, static=True), config_of(256, 2, 1)),
    (INT8, problem_of(INT8, 128, 4096, 4096, 64, zeros="integer"), config_of(128, 2, 2, 1, 3)),
    (INT2, problem_of(INT2, 128, 4096, 4096, 4096, zeros="integer", dtype="float16"), config_of(128, 2, 2)),
    pytest.param(INT1, problem_of(INT1, 128, 4096, 4096, 32), config_of(128, 2, 2), marks=THOROUGH),
    pytest.param(W4A16, problem_of(W4A16, 96, 4096, 4096, dtype="float16"), config_of(96, 2, 2), marks=THOROUGH),
    pytest.param(W4, problem_of(W4, 8, 4096, 4096, 32), config_of(8, 1, 1, 4, 8, 2), marks=THOROUGH),
    pytest.param(W8, problem_of(W8, 32, 4096, 4096, dtype="float16"), config_of(32, 1, 1, 2, 4, 2), marks=THOROUGH),
]
"""Those with the most sums in registers are for every change."""


@pytest.mark.parametrize(("implementation", "problem", "config"), COMPILED)
@pytest.mark.few(1)
def test_what_is_compiled_does_not_spill(implementation: WgmmaPacked, problem: Problem, config: Config) -> None:
    (variant,) = implementation.variants(problem, config, H200, NOTHING)
    assert implementation.compile(variant, H200.target).resources["spill_bytes"] == 0
