"""The headers that kernels share: compiled once they pay, of no effect on what is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.backends.cpp import compiler, precompiled
from registry.errors import CompileError

SOURCE = '#include <cmath>\nextern "C" double %s(double x) {{ return std::sqrt(x) + {number}; }}\n'


def build(name: str, number: int) -> Path:
    return compiler.build((SOURCE % name).format(number=number), (), name)


def forgets_what_it_includes(number: int) -> None:
    """A kernel that does not say what it includes fails, whether the header that says it is there or not."""
    with pytest.raises(CompileError, match="vector"):
        compiler.build(f"int f() {{ return std::vector<int>({number}).size(); }}", (), "forgets")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    found = compiler.find_compiler()
    if isinstance(found, compiler.NoCompiler) or not found.is_gcc:
        pytest.skip("GCC alone takes a precompiled header by its name")
    return tmp_path / "cache"


@pytest.mark.thorough
def test_the_third_kernel_of_a_process_makes_it_and_libraries_are_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build("one", 1)
    forgets_what_it_includes(1)
    assert not list(cache.rglob("*.gch"))
    build("one", 3)
    (made,) = cache.rglob("*.gch")
    forgets_what_it_includes(2)
    content = first.read_bytes()
    first.unlink()
    with monkeypatch.context() as without:
        without.setattr(precompiled, "_HEADERS", "#error nobody reads this text while the other is there\n")
        assert build("one", 1).read_bytes() == content
    made.write_bytes(made.read_bytes()[:4096])
    assert build("one", 4).exists()
    assert not made.exists()


def test_a_header_that_cannot_be_made_is_done_without(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompiled, "_HEADERS", "#error no such header\n")
    for number in range(3):
        assert build("two", number).exists()
    assert not list(cache.rglob("*.gch"))
