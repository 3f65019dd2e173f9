"""What a compiler is told through the environment belongs to what it compiles."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch

from registry.backends import compiler_environment
from registry.backends.cpp import compiler
from registry.discovery.catalog import Catalog

TORCHS = str(Path(torch.__file__).parent / "bin" / "ptxas")
"""What Inductor sets for all of the process once it has compiled a kernel for a GPU."""


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("PTXAS_OPTIONS", "-O1", {"triton.row", "torch.compile"}),
        ("DISABLE_LLVM_OPT", "1", {"triton.row", "torch.compile"}),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1", {"torch.compile"}),
        ("CPATH", "/somewhere/include", {"cpp.rows", "torch.compile"}),
        ("CXX", "g++ -O1", {"cpp.rows", "torch.compile"}),
        ("CXX", "g++", set()),
        ("TORCHINDUCTOR_CACHE_DIR", "/somewhere", set()),
        ("TORCHINDUCTOR_COMPILE_THREADS", "1", set()),
        ("TRITON_CACHE_DIR", "/somewhere", set()),
        ("TRITON_DISABLE_LINE_INFO", "1", set()),
        ("PTXAS_OPTIONS", "", set()),
        ("TRITON_PTXAS_PATH", "/somewhere/ptxas", {"triton.row", "torch.compile"}),
        ("TRITON_PTXAS_PATH", TORCHS, set()),
    ],
)
@pytest.mark.few(6)
def test_a_variable_changes_the_fingerprints_of_those_whose_compiler_obeys_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, name: str, value: str, changed: set[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    names = ("triton.row", "torch.compile", "cpp.rows", "cuda.row", "torch.native")
    found = {each: catalog.implementation("softmax", each) for each in names}
    before = {each: implementation.fingerprint() for each, implementation in found.items()}
    monkeypatch.setenv(name, value)
    after = {each: implementation.fingerprint() for each, implementation in found.items()}
    assert {each for each in names if before[each] != after[each]} == changed


@pytest.mark.parametrize(("named", "inside"), [(TORCHS, None), ("/somewhere/ptxas", "/somewhere/ptxas"), (None, None)])
def test_triton_assembles_as_it_did_before_inductor_named_torchs_assembler(
    monkeypatch: pytest.MonkeyPatch, named: str | None, inside: str | None
) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    if named:
        monkeypatch.setenv("TRITON_PTXAS_PATH", named)
    found = "nothing"
    with contextlib.suppress(OSError), compiler_environment.tritons_own_assembler():
        found = os.environ.get("TRITON_PTXAS_PATH")
        raise OSError("the compiler fails")
    assert found == inside
    assert os.environ.get("TRITON_PTXAS_PATH") == named


def test_torchs_assembler_is_where_inductor_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = pytest.importorskip("torch._inductor.runtime.compile_tasks")
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(os, "access", lambda *_: True)
    tasks._set_triton_ptxas_path.__wrapped__()
    assert os.environ["TRITON_PTXAS_PATH"] == TORCHS
    monkeypatch.delenv("TRITON_PTXAS_PATH")


def test_nvcc_obeys_its_own_flags_and_the_host_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O0")
    monkeypatch.setenv("CPATH", "/somewhere/include")
    found = compiler_environment.nvcc()
    assert (found["NVCC_APPEND_FLAGS"], found["CPATH"]) == ("-O0", "/somewhere/include")
    assert "NVCC_APPEND_FLAGS" not in compiler_environment.host_compiler()


def test_what_a_compiler_obeys_is_compiled_into_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" void registry_make_serial() {}'
    before = compiler.build(text, (), "nothing")
    monkeypatch.setenv("CPATH", "/somewhere/include")
    assert compiler.build(text, (), "nothing").name.partition("-")[0] != before.name.partition("-")[0]
