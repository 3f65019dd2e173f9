"""What a compiler is told through the environment belongs to what it compiles."""

from __future__ import annotations

import pytest

from registry.backends import compiler_environment
from registry.backends.cpp import compiler
from registry.discovery.catalog import Catalog


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
    ],
)
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
