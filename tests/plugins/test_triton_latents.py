"""mla_decode's and the sampler's Triton kernels without a GPU: shared memory, tensor cores, and splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from registry.artifact import Artifact
from registry.device import Device
from registry.space import Config
from registry_triton.attention.latent_tiles import LatentTile
from registry_triton.attention.mla_decode import SplitMlaDecode, WholeMlaDecode
from registry_triton.sampling.top_k_top_p import LoopedTopKTopPSampling, SplitTopKTopPSampling

from ..tiers import THOROUGH, one_of_each
from .test_triton import A100, H200, MI300, MLA, problem_of, signature

FORMS = (WholeMlaDecode(), SplitMlaDecode())


def compiled(form: WholeMlaDecode | SplitMlaDecode, dims: Mapping[str, Any], dtype: str, config: Config) -> Artifact:
    """The kernel that reads latents."""
    problem = problem_of("mla_decode", {**MLA, **dims}, dtype)
    variant = form.variants(problem, config, H200, signature(problem, form, config, H200))[0]
    return form.compile(variant, H200.target)


@pytest.mark.parametrize(("dims", "dtype"), one_of_each(
    [
        ({"heads": heads, "page": page}, dtype)
        for heads, page, dtype in (
            (16, 64, "bfloat16"), (128, 64, "bfloat16"), (128, False, "bfloat16"), (16, 16, "float16"),
            (32, False, "float32"), (40, 16, "bfloat16"),
        )
    ]
))  # fmt: skip
@pytest.mark.thorough
def test_the_largest_configuration_fits_and_was_counted(dims: Mapping[str, Any], dtype: str) -> None:
    form, problem = WholeMlaDecode(), problem_of("mla_decode", {**MLA, **dims}, dtype)
    tile = LatentTile.of(problem)
    largest = max(form.space(problem, H200).configs, key=lambda config: tile.shared_bytes(config, H200))
    counted = tile.shared_bytes(largest, H200)
    assert compiled(form, dims, dtype, largest).resources["shared_bytes"] <= counted <= H200.shared_bytes


@pytest.mark.thorough
def test_64_heads_are_multiplied_by_hopper_s_own_products_and_loads_are_ahead() -> None:
    # what test_triton.py compiles, too
    config = FORMS[1].default(problem_of("mla_decode", {**MLA, "batch": 1}), H200)
    assert config["ROWS"] == 64
    (text,) = Path(compiled(FORMS[1], {"batch": 1}, "bfloat16", config).path).parent.glob("*.ptx")
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" in text.read_text()
    assert "cp.async.cg" in text.read_text()


@pytest.mark.parametrize("device", [H200, A100, MI300], ids=lambda device: device.architecture[:6])
def test_one_sequence_is_split_over_all_multiprocessors(device: Device) -> None:
    problem = problem_of("mla_decode", {**MLA, "batch": 1})
    config = FORMS[1].default(problem, device)
    tiles = -(-128 // config["ROWS"])
    assert device.multiprocessors / 2 <= tiles * (8192 // config["keys"]) <= 4 * device.multiprocessors
    assert FORMS[1].preference(problem, device) > FORMS[0].preference(problem, device)


@pytest.mark.parametrize(("device", "dependent"), [(H200, True), (A100, False), (MI300, False)], ids=str)
def test_only_hopper_and_later_launch_the_combination_while_the_parts_run(device: Device, dependent: bool) -> None:
    problem = problem_of("mla_decode", {**MLA, "batch": 1})
    first, second = FORMS[1].launch(problem, FORMS[1].default(problem, device), device)
    assert first.constants["DEPENDENT"] == second.constants["DEPENDENT"] == dependent
    assert second.options.get("launch_pdl", False) == dependent


def test_latents_that_do_not_fit_and_are_too_long_are_told() -> None:
    for form in FORMS:
        (reason,) = form.unsupported(problem_of("mla_decode", {**MLA, "kv_lora_rank": 1024}), H200)
        assert reason == "latents of 1024 and 64 elements (limits 512 and 128)"
        (reason,) = form.unsupported(problem_of("mla_decode", MLA, "float32"), MI300)
        assert "blocks fit in shared memory" in reason
    (reason,) = FORMS[1].unsupported(problem_of("mla_decode", {**MLA, "kv_len": 64}), H200)
    assert reason == "64 tokens are too few to split (from 65)"


@pytest.mark.parametrize(
    # for both of them it is compiled with the other defaults
    "filters",
    [*(pytest.param(one, marks=THOROUGH) for one in ((True, False), (False, True))), (False, False)],
    ids=str,
)
@pytest.mark.thorough
def test_a_sampler_is_compiled_for_the_filters_that_are_there(filters: tuple[bool, bool]) -> None:
    form, dims = LoopedTopKTopPSampling(), dict(zip(("top_k", "top_p"), filters, strict=True))
    problem = problem_of("top_k_top_p_sampling", {"rows": 64, "cols": 50257, **dims})
    config = form.default(problem, H200)
    (variant,) = form.variants(problem, config, H200, signature(problem, form, config, H200))
    artifact = form.compile(variant, H200.target)
    assert artifact.resources["spill_bytes"] == 0
    assert bool(form.scratch(problem, config, H200)) == any(filters)


@pytest.mark.parametrize(("rows", "best"), [(1, "triton.split_rows"), (64, "triton.looped"), (4096, "triton.looped")])
def test_few_rows_are_split_where_top_k_keeps_a_part_of_them(rows: int, best: str) -> None:
    forms, dims = (LoopedTopKTopPSampling(), SplitTopKTopPSampling()), {"rows": rows, "cols": 128256, "top_p": True}
    problem = problem_of("top_k_top_p_sampling", {**dims, "top_k": True})
    able = [form for form in forms if not list(form.unsupported(problem, H200))]
    assert max(able, key=lambda form: form.preference(problem, H200)).name == best
    (reason,) = forms[1].unsupported(problem_of("top_k_top_p_sampling", {**dims, "rows": 1, "top_k": False}), H200)
    assert reason == "without top_k every part of a row is kept whole"
