"""Artifacts that one node compiles are found by another in its own cache, as if it had compiled them."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.artifact import Artifact
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.fleet.on_ray.artifact_files import digest_of, files_of, install, missing
from registry.fleet.on_ray.compiling_ahead import AheadVariant, key_of, variants_ahead
from registry.fleet.on_ray.described_device import DescribedDevice
from registry.problem import Problem

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
CPU = Device.of("cpu")


def node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(folder))
    return folder


def moved(
    ahead: AheadVariant, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Artifact]:
    """Compile in one cache, install in another; returns that cache, and what compiling finds there."""
    node(tmp_path / "one", monkeypatch)
    files = files_of(ahead.implementation.compile(ahead.variant, device.target))
    assert files
    other = node(tmp_path / "other", monkeypatch)
    digests = {path: digest_of(content) for path, content in files.items()}
    assert missing(digests) == digests
    assert all(install(path, content, digests[path]) for path, content in files.items())
    assert missing(digests) == {}
    before = {path: path.stat().st_mtime_ns for path in other.rglob("*") if path.is_file()}
    found = ahead.implementation.compile(ahead.variant, device.target)
    assert {path: path.stat().st_mtime_ns for path in other.rglob("*") if path.is_file()} == before
    return other, found


@pytest.mark.parametrize(
    ("name", "device"), [("triton.block", H200), pytest.param("cpp.blocks", CPU, marks=pytest.mark.thorough)]
)
def test_what_another_node_compiled_is_not_compiled_again(
    name: str, device: Device, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("square", {"n": 4096, "dtype": "float32"})
    ahead = next(iter(variants_ahead(problem, catalog, device, [name])))
    other, found = moved(ahead, device, tmp_path, monkeypatch)
    assert Path(found.path).is_relative_to(other)


def test_content_that_changed_on_its_way_and_paths_outside_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node(tmp_path / "cache", monkeypatch)
    assert not install("cpp/ab/x.so", b"changed", digest_of(b"sent"))
    for path in ("../escaped", "/etc/escaped", "cpp/../../escaped", "locks/cpu.device", "cpp"):
        assert missing({path: "digest"}) == {}
        assert not install(path, b"", digest_of(b""))
    assert not (tmp_path / "escaped").exists()
    assert install("cpp/ab/x.so", b"sent", digest_of(b"sent"))
    assert (folder / "cpp" / "ab" / "x.so").read_bytes() == b"sent"


def test_only_what_is_found_by_its_name_is_shared_by_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from registry.artifact import Variant

    folder = node(tmp_path / "cache", monkeypatch)
    (folder / "inductor").mkdir(parents=True)
    (folder / "inductor" / "x.bin").write_bytes(b"1")
    variant = Variant("inductor", "x", {})
    assert files_of(Artifact(variant, str(folder / "inductor" / "x.bin"))) == {}
    assert files_of(Artifact(variant, "/etc/passwd")) == {}
    assert files_of(Artifact(variant)) == {}


def test_what_a_search_surely_needs_is_compiled_ahead_once(catalog: Catalog) -> None:
    problem = Problem("square", {"n": 4096, "dtype": "float32"})
    found = list(variants_ahead(problem, catalog, H200, ()))
    keys = [key_of(one, DescribedDevice(H200, {}, {})) for one in found]
    assert len(set(keys)) == len(keys)
    (planned,) = {one.implementation.op for one in found}
    assert planned == "square"
    assert {one.implementation.name for one in found} >= {"triton.block", "torch.compile"}
