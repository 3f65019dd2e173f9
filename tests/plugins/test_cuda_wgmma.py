"""cuda.wgmma for linear and scaled_mm: reasons, spaces and defaults, variants, its kernels compiled without spills."""

from __future__ import annotations

import io
from typing import Any

import pytest

from registry.artifact import Signature, Variant
from registry.backends.cuda import nvrtc
from registry.device import Device
from registry.problem import Arguments, Problem, Value
from registry.space import Config
from registry_cuda.linear import WgmmaLinear
from registry_cuda.scaled_mm import WgmmaScaledMm
from registry_cuda.tensor_map import MatrixTiles, tensor_map
from registry_cuda.wgmma_gemm import WgmmaGemm

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})
TRAITS = {"aligned": True, "contiguous": True}
Product = tuple[WgmmaGemm, Problem]


def linear(m: int, n: int, k: int, *, aligned: bool = True, **more: Value) -> Product:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "bias": True, "dtype": "bfloat16", **more}
    return WgmmaLinear(), Problem("linear", dims, {**TRAITS, "aligned": aligned})


def scaled(m: int, n: int, k: int, scales: str, **more: Value) -> Product:
    dims: dict[str, Value] = {"m": m, "n": n, "k": k, "scales": scales, "bias": False, "out_dtype": "bfloat16"}
    return WgmmaScaledMm(), Problem("scaled_mm", {**dims, "dtype": "float8_e4m3fn", **more}, TRAITS)


def reasons(product: Product, device: Device = H200) -> list[str]:
    implementation, problem = product
    return [reason.split()[0] for reason in implementation.unsupported(problem, device)]


def test_every_reason_is_given() -> None:
    assert reasons(linear(16, 12, 20, aligned=False), A100) == ["wgmma", "tensors", "k=20", "n=12", "m=16"]
    assert reasons(linear(64, 64, 64, dtype="float32")) == ["dtype"]
    assert reasons(scaled(64, 64, 64, "row", dtype="int8")) == ["dtype"]
    assert reasons(scaled(64, 72, 72, "row")) == ["k=72"]
    assert reasons(scaled(64, 12, 64, "row", out_dtype="float32")) == []
    assert reasons(linear(2**31, 64, 64)) == ["m=2147483648,"]
    assert reasons(linear(17, 8, 8)) == []


@pytest.mark.parametrize("m", [17, 64, 65, 128, 200, 512, 8192])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096), (4096, 14336), (16, 16)])
@pytest.mark.few(14)
def test_spaces_hold_their_default_and_fit_shared_memory(m: int, n: int, k: int) -> None:
    for implementation, problem in (linear(m, n, k), scaled(m, n, k, "row"), scaled(m, n, k, "block")):
        space = implementation.space(problem, H200)
        assert 1 <= len(space) <= 80
        assert implementation.default(problem, H200) in space
        for config in space:
            launch = implementation.launch(problem, config, H200)
            assert launch.shared_bytes <= 227 * 1024
            assert launch.grid[0] % config["cluster"] == 0
            assert config["stages"] >= 3


def test_large_products_take_tiles_that_reuse_what_they_fetch() -> None:
    for implementation, problem in (linear(8192, 8192, 8192), scaled(4096, 7168, 16384, "block")):
        chosen = implementation.default(problem, H200)
        assert (chosen["block_m"] >= 128, chosen["block_n"] >= 128, chosen["warpgroups"]) == (True, True, 2)


def test_one_variant_serves_all_sizes() -> None:
    config = WgmmaLinear().default(linear(8192, 8192, 8192)[1], H200)
    sizes = [(300, 520, 1000), (8192, 8192, 8192), (4096, 28672, 4096)]
    found = [product[0].variants(product[1], config, H200, NOTHING) for product in (linear(*size) for size in sizes)]
    assert len({variant.key for variants in found for variant in variants}) == 1


def test_without_a_gpu_a_tensor_map_has_its_places() -> None:
    found = tensor_map("x", MatrixTiles("bfloat16", 300, 512, 128))
    assert found == ("x", *[0] * 15)


def test_blocks_of_a_cluster_share_the_wider_operand() -> None:
    implementation, problem = linear(512, 512, 512)
    config: Config = {"block_m": 256, "block_n": 128, "warpgroups": 2, "stages": 4, "cluster": 2, "group_m": 8}
    assert implementation.launch(problem, config, H200).grid == (2 * 2 * 2,)
    odd = implementation.launch(linear(512, 640, 512)[1], config, H200)
    assert odd.grid == (2 * 3 * 2,), "the last cluster has a block without a tile"


def compiled(variant: Variant) -> str:
    """What the compiler says of a variant, warnings among it."""
    from cuda.core import Program

    source = nvrtc.Source(variant.source, variant.kernel, variant.spec["constants"], "sm_90a", variant.spec["options"])
    log = io.StringIO()
    program = Program(source.text, "c++", nvrtc._program_options(source))
    program.compile("cubin", name_expressions=(source.name,), logs=log)
    return log.getvalue()


def told(product: Product, config: Config) -> dict[str, Any]:
    implementation, problem = product
    (variant,) = implementation.variants(problem, config, H200, NOTHING)
    text = compiled(variant)
    # C7510 and the like: products that wait for each other, or registers that are not given
    return {"warned": "(C75" in text, "spills": " 0 bytes spill stores" not in text}


FINE = {"warned": False, "spills": False}


@pytest.mark.parametrize("scales", ["", "row", "block"])
@pytest.mark.few(1)
def test_defaults_neither_spill_nor_serialise_their_products(scales: str) -> None:
    product = scaled(4096, 7168, 2048, scales) if scales else linear(4096, 7168, 2048)
    assert told(product, product[0].default(product[1], H200)) == FINE


@pytest.mark.thorough
@pytest.mark.parametrize(
    "product",
    [
        linear(4096, 4096, 4096),
        scaled(4096, 4096, 4096, "tensor", out_dtype="float32"),
        scaled(4096, 4096, 4096, "row", bias=True),
        scaled(4096, 4096, 4096, "block", bias=True, out_dtype="float16"),
        scaled(64, 4096, 4096, "block"),
    ],
    ids=["bias", "tensor", "row", "block", "few rows"],
)
def test_no_tile_spills_or_serialises_its_products(product: Product) -> None:
    seen: dict[tuple[Any, ...], Config] = {}
    for config in product[0].space(product[1], H200):
        if config["cluster"] == 2 or config["block_m"] == 64:
            seen.setdefault((config["block_m"], config["block_n"], config["warpgroups"]), config)
    assert {tile: told(product, config) for tile, config in seen.items()} == dict.fromkeys(seen, FINE)
