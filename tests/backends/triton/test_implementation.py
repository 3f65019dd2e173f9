"""The Triton backend without a GPU: variants, compiling, errors, fingerprints. Launching is tested in tests/gpu."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from registry.artifact import Artifact, Built, Signature, Target, Variant
from registry.backends import estimate, kernel_limit
from registry.backends.triton import TritonImplementation
from registry.backends.triton import implementation as triton
from registry.backends.triton.bound_launch import full_grid, interpreted_run
from registry.backends.triton.variant import find_kernel
from registry.device import Device
from registry.errors import CompileError, DeviceError, InvalidDefinitionError, OutOfResourcesError, UnknownNameError
from registry.implementation import Implementation, Launch
from registry.problem import Arguments, Problem, TensorSpec

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
SM_90 = Target("cuda", "sm_90")
CONFIG = {"BLOCK": 64, "num_warps": 1}


def load_by_path(path: Path, name: str) -> ModuleType:
    """A module that no package holds, as a shapes author's kernels.py is."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


kernels = load_by_path(Path(__file__).with_name("triton_kernels.py"), "registry_test_triton_kernels")


def signature(n: int, alignment: int = 16, zeros: bool = True, dtype: torch.dtype = torch.float16) -> Signature:
    x = TensorSpec((n,), dtype, (1,), alignment=alignment)
    y = TensorSpec((n,), dtype, (1,))
    arguments = Arguments("test", {"x": x, "zeros": y if zeros else None, "factor": 0.5})
    return Signature(arguments, {"y": y}, {"half": TensorSpec((n,), torch.float32, (1,))})


def variants(n: int, implementation: Implementation | None = None, **given: Any) -> tuple[Variant, ...]:
    chosen = implementation or kernels.Scaled()
    return chosen.variants(Problem("test", {"n": n}), CONFIG, H200, signature(n, **given))


def test_a_process_loads_so_many_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_limit, "MOST_KERNELS", 0)
    (variant,) = variants(64)
    with pytest.raises(OutOfResourcesError, match="has loaded 0 Triton kernels, and keeps them"):
        triton._load(Artifact(variant), H200)


def test_a_variant_is_plain_data_that_names_types_constants_and_what_is_aligned() -> None:
    (variant,) = variants(1000)
    assert variant.kernel == "registry_test_triton_kernels:scaled"
    assert variant.spec["signature"] == [
        ["y", "*fp16"], ["x", "*fp16"], ["zeros", "*fp16"], ["factor", "fp32"], ["n", "i32"], ["width", "i32"],
        ["BLOCK", "constexpr"],
    ]  # fmt: skip
    assert variant.spec["constants"] == {"BLOCK": 64}
    assert variant.spec["aligned"] == ["y", "x", "zeros", "width"]
    assert variant.spec["options"] == {"enable_fp_fusion": True, "num_warps": 1}


def test_problems_that_differ_in_rows_share_a_variant() -> None:
    assert {variants(n)[0].key for n in (1, 16, 1000, 4096)} == {variants(7)[0].key}


def test_a_number_beyond_32_bits_a_missing_tensor_and_another_dtype_are_other_variants() -> None:
    keys = {variants(5)[0].key, variants(2**31)[0].key, variants(5, zeros=False)[0].key}
    keys |= {variants(5, alignment=2)[0].key, variants(5, dtype=torch.bfloat16)[0].key}
    assert len(keys) == 5
    assert variants(2**31)[0].spec["signature"][4] == ["n", "i64"]
    assert variants(5, zeros=False)[0].spec["constants"] == {"BLOCK": 64, "zeros": None}


def test_nothing_is_assumed_of_addresses_in_the_unaligned_twin() -> None:
    loose = signature(1000).misaligned()
    (variant,) = kernels.Scaled().variants(Problem("test", {"n": 1000}), CONFIG, H200, loose)
    assert variant.spec["aligned"] == ["width"]


def test_every_launch_of_a_sequence_has_its_variant() -> None:
    first, second = variants(10, kernels.Scaled(twice=True))
    assert first.spec["signature"][0] == ["y", "*fp32"]
    assert second.spec["signature"][1] == ["x", "*fp32"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "gfx942"])
def test_compiles_without_a_gpu_and_tells_what_it_needs(architecture: str) -> None:
    target = Target("hip", architecture, 64) if architecture.startswith("gfx") else Target("cuda", architecture)
    (variant,) = variants(1000)
    artifact = kernels.Scaled().compile(variant, target)
    assert artifact.variant == variant
    assert artifact.resources["threads"] == target.warp_size
    assert artifact.resources["registers"] > 0
    assert artifact.resources["spill_bytes"] == 0
    assert artifact.resources["shared_bytes"] == 0


def test_the_compilers_refusal_is_one_line_with_its_reason() -> None:
    launch = Launch(kernels.refuses, (1,), ("y", "x"), {"SIZE": 32})
    with pytest.raises(CompileError, match="SIZE must exceed 64") as caught:
        _compile(launch)
    assert "\n" not in caught.value.message
    assert "refuses for sm_90" in caught.value.message


@pytest.mark.thorough
def test_more_shared_memory_than_the_target_has_is_out_of_resources() -> None:
    launch = Launch(kernels.product, (1,), ("y", "x"), {"SIZE": 128, "STAGES": 8}, {"num_warps": 8})
    with pytest.raises(OutOfResourcesError, match="bytes of shared memory, sm_90 has 232448"):
        _compile(launch)


def _compile(launch: Launch) -> None:
    class One(TritonImplementation):
        op, name = "test", "test.one"

        def launch(self, *_: object) -> Launch:
            return launch

    (variant,) = variants(4096 * 128, One())
    One().compile(variant, SM_90)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch("scaled", (1,), ("y",)), "is no Triton kernel"),
        (Launch(kernels.refuses, (1,), ("y",), {"SIZE": 65}), r"takes 2 arguments \(y, x\)"),
        (Launch(kernels.refuses, (1,), ("y", "x"), {"SIZES": 65}), "has no parameter SIZES"),
        (Launch(kernels.refuses, (1,), ("y", "x"), {"SIZE": [65]}), r"constant \[65\]"),
    ],
)
def test_a_launch_that_does_not_fit_its_kernel_is_refused(launch: Launch, message: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=message):
        _compile(launch)


def test_an_unknown_argument_or_option_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown argument 'xx' of kernel refuses .*triton_kernels\.py:"):
        _compile(Launch(kernels.refuses, (1,), ("y", "xx"), {"SIZE": 65}))
    with pytest.raises(UnknownNameError, match="did you mean num_warps"):
        _compile(Launch(kernels.refuses, (1,), ("y", "x"), {"SIZE": 65}, {"num_warp": 4}))


def test_a_kernel_is_found_by_its_name_in_a_module_loaded_from_a_path() -> None:
    assert find_kernel("registry_test_triton_kernels:scaled") is kernels.scaled


@pytest.mark.parametrize("grid", [(65536, 65536), (2**31,), (1, 70000), (1, 1, 1, 1), (-1,)])
def test_a_grid_that_cannot_be_launched_is_refused(grid: tuple[int, ...]) -> None:
    with pytest.raises(OutOfResourcesError, match="grid"):
        full_grid(grid, "test.scaled of test")


def test_a_grid_has_three_extents() -> None:
    assert full_grid((2**31 - 1,), "") == (2**31 - 1, 1, 1)
    assert full_grid((0, 3), "") == (0, 3, 1)


def test_binding_on_a_cpu_outside_the_interpreter_is_refused() -> None:
    with pytest.raises(DeviceError, match="TRITON_INTERPRET=1"):
        kernels.Scaled().bind(Problem("test", {"n": 8}), CONFIG, Device.of("cpu"), Built(signature(8)))
    with pytest.raises(DeviceError, match="TRITON_INTERPRET=1"):
        kernels.Scaled().variants(Problem("test", {"n": 8}), CONFIG, Device.of("cpu"), signature(8))
    assert kernels.Scaled.device_types == {"cuda"}


SOURCE = Path(__file__).with_name("triton_kernels.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("    value = tl.load", "    # a remark\n\n    value = tl.load", True),
        ("A kernel and implementations", "Other words about kernels", True),
        ("* factor", "* (factor + 1)", False),
        ("num_warps=[1, 4]", "num_warps=[1, 2, 4]", False),
        ("problem.n, 32)", "problem.n, 48)", False),
    ],
)
def test_the_fingerprint_follows_the_code_and_not_its_comments(tmp_path: Path, old: str, new: str, same: bool) -> None:
    assert old in SOURCE
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE.replace(old, new, 1))
    changed = load_by_path(path, f"registry_test_{tmp_path.name}")
    assert (changed.Scaled().fingerprint() == kernels.Scaled().fingerprint()) is same


def test_estimates_hold_on_a_gpu_and_on_a_cpu() -> None:
    cpu = Device.of("cpu")
    assert estimate.threads(4, H200) == estimate.threads(4, cpu) == 128
    assert estimate.elements_per_thread(1024, 4, H200) == 8
    assert estimate.fits_shared(227 * 1024, H200)
    assert not estimate.fits_shared(227 * 1024 + 1, H200)
    assert estimate.fits_shared(2**30, cpu)
    assert estimate.fits_registers(64 * 1024, 32, cpu)
    assert not estimate.fits_registers(65 * 1024, 32, H200)
    assert [estimate.next_power_of_2(n) for n in (0, 1, 3, 4096)] == [1, 1, 4, 4096]
    assert [estimate.row_multiple(n) for n in (4096, 1000, 7)] == [16, 8, 1]


def test_the_interpreter_gives_back_expanded_halves_as_they_were() -> None:
    row = torch.tensor([1.0, math.nan], dtype=torch.bfloat16)
    interpreted_run([])((), (row.expand(3, 2),), ())
    assert row[0] == 1.0
