"""A compiled kernel is found again by its file, and is what the compiler would have returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.artifact import Target, Variant
from registry.backends.triton.implementation import _compiled
from registry.backends.triton.stored import kernel_from
from registry.backends.triton.variant import source_of
from registry.device import Device
from registry.discovery.catalog import Catalog

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
TARGETS = [Target("cuda", "sm_90"), Target("hip", "gfx942", 64)]


@pytest.fixture(scope="module")
def variant() -> Variant:
    catalog = Catalog()
    op = catalog.op("square")
    problem = op.problem_of({"n": 4096, "dtype": "float32"})
    implementation = next(each for each in catalog.implementations("square") if each.name.startswith("triton."))
    from registry.arguments.inputs import arguments_of
    from registry.dispatch.plans.plan import Candidate, Draft

    candidate = Candidate(implementation, implementation.default(problem, H200))
    return Draft.of(op, candidate, problem, arguments_of(op, problem), H200).variants()[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.architecture)
def test_the_file_alone_gives_the_kernel_that_was_compiled(variant: Variant, target: Target) -> None:
    implementation = next(each for each in Catalog().implementations("square") if each.name.startswith("triton."))
    artifact = implementation.compile(variant, target)
    kernel, compiled = kernel_from(artifact.path, source_of(variant)), _compiled(variant, target)
    assert kernel is not None
    assert (kernel.kernel, kernel.metadata, kernel.hash) == (compiled.kernel, compiled.metadata, compiled.hash)
    assert kernel.src.signature == compiled.src.signature
    assert kernel.src.constants == compiled.src.constants


def test_what_is_not_there_or_damaged_is_left_to_the_compiler(variant: Variant, tmp_path: Path) -> None:
    source = source_of(variant)
    described = tmp_path / "square.json"
    assert kernel_from(str(described), source) is None
    described.write_text(json.dumps({"name": "square"}))
    assert kernel_from(str(described), source) is None, "there is no binary"
    (tmp_path / "square.cubin").write_bytes(b"")
    assert kernel_from(str(described), source) is None, "the description is not Triton's"
