"""Files that Inductor shares beside its cache: code of ours is compiled with none that another user can write to."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache
from torch._inductor import config as inductor_config

from registry.artifact import Artifact, Variant
from registry.backends.inductor import InductorImplementation
from registry.backends.inductor import artifact as inductor_artifact
from registry.device import Device
from registry.paths import cache_folder

from ... import fresh
from ...tiers import THOROUGH


class Square(InductorImplementation):
    """square."""

    op = "square"
    name = "mine.square"

    def function(self, *values: Any) -> torch.Tensor:
        """``x * x``."""
        return torch.square(values[0])


_COMPILE = """
import sys, tempfile, torch
tempfile.tempdir = sys.argv[1]
import registry
from registry.backends.inductor import artifact as inductor_artifact
from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
CPU, SQUARE = Device.of("cpu"), next(op for op in BOX if op.name == "square")
(compiled,) = [each for each in registry.implementations("square") if each.name == "torch.compile"]
inductor_artifact.available = lambda: sys.argv[2] != "at its first call"
for n in (int(sys.argv[3]), 77, 1):
    x = torch.randn(n)
    arguments = SQUARE.arguments((x,))
    problem = SQUARE.pose(arguments)
    plan = build(SQUARE, Candidate(compiled, {}), problem, arguments, CPU, untuned=sys.argv[2] == "untuned")
    torch.testing.assert_close(plan(x), x * x)
    if sys.argv[2] != "untuned":
        break
"""
"""Compiles in ways that ``sys.argv`` names; untuned, more often than Inductor's advice is kept from the log."""


def _compiles(temporary: Path, way: str, size: int) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    done = fresh.run("-c", _COMPILE, str(temporary), way, str(size), env={**environ, "TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["ahead", "untuned", "at its first call"])
@THOROUGH
def test_no_file_is_left_where_others_write_and_none_is_read(tmp_path: Path, way: str) -> None:
    _compiles(tmp_path, way, 1003)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []
    headers = list(cache_folder("torchinductor", "precompiled_headers").glob("*.h"))
    assert headers
    everybodys = tmp_path / f"torchinductor_{codecache.default_cache_dir().rpartition('_')[2]}" / "precompiled_headers"
    everybodys.mkdir(parents=True)
    for header in headers:
        (everybodys / header.name).write_text("#error planted\n")
        (everybodys / f"{header.name}.gch").write_bytes(b"")
    _compiles(tmp_path, way, 1511)


def test_a_header_that_the_process_has_precompiled_elsewhere_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @functools.cache
    def look(header: str, _line: str, **_: Any) -> str:
        return f"{codecache._HEADER_DIR}/{header} {codecache._HEADER_LOCK_DIR}"

    monkeypatch.setattr(codecache, "_precompile_header", look)
    monkeypatch.setattr(codecache, "_HEADER_DIR", "/elsewhere")
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", "/elsewhere/locks")
    assert codecache._precompile_header("a.h", "g++") == "/elsewhere/a.h /elsewhere/locks"
    for own in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(own))
        folder = own / "torchinductor" / "precompiled_headers"
        with inductor_artifact.PATCHING, inductor_artifact.own_caches():
            assert codecache._precompile_header("a.h", "g++") == f"{folder}/a.h {folder / 'locks'}"
    assert codecache._precompile_header("a.h", "g++") == "/elsewhere/a.h /elsewhere/locks"


@pytest.mark.parametrize("name", ["_HEADER_DIR", "_HEADER_LOCK_DIR", "_precompile_header"])
def test_a_torch_of_other_names_precompiles_no_headers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(codecache, name)
    with inductor_config.patch(cpp_cache_precompile_headers=True):
        with inductor_artifact.PATCHING, inductor_artifact.own_caches():
            assert not inductor_config.cpp_cache_precompile_headers
        assert inductor_config.cpp_cache_precompile_headers


def test_answers_of_earlier_processes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("torch._inductor.runtime.caching.config")
    monkeypatch.setattr(caching, "IS_CACHING_MODULE_ENABLED", lambda: True)
    with inductor_artifact.PATCHING, inductor_artifact.own_caches():
        assert not caching.IS_CACHING_MODULE_ENABLED()
    assert caching.IS_CACHING_MODULE_ENABLED()


def test_code_that_is_no_file_is_compiled_in_own_folders_and_other_calls_wait_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        folders.append(codecache._HEADER_DIR)
        return graph.forward

    made = torch.compile(lambda x: x + 1)
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda _: backend)
    monkeypatch.setattr("registry.backends.inductor.headers._compiled", lambda *_: made)
    function = Square()._compiled(Artifact(Variant("inductor", "", {}, "")), Device.of("cpu").target)
    assert function(torch.zeros(3)).tolist() == [1, 1, 1]
    assert folders == [str(cache_folder("torchinductor", "precompiled_headers"))]
    with ThreadPoolExecutor(1) as other, inductor_artifact.PATCHING:
        assert other.submit(function, torch.ones(3)).result(timeout=60).tolist() == [2, 2, 2]
    assert len(folders) == 1
