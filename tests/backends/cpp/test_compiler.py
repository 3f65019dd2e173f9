"""The cache of compiled C++: what it is keyed by, and what damages or strangers cannot do to it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from registry.backends import kernel_limit
from registry.backends.cpp import precompiled
from registry.backends.cpp.compiler import build, is_intact, load
from registry.errors import CompileError, OutOfResourcesError, RegistryError

from ... import fresh

SOURCE = """
extern "C" __attribute__((visibility("default"))) void registry_make_serial() {}
extern "C" __attribute__((visibility("default"))) int answer() { return VALUE; }
"""


def unit(value: int | str = 42, comment: str = "") -> str:
    """A small library's text."""
    return f"#define VALUE {value}\n// {comment}\n{SOURCE}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own, for which no header is made: that takes longer than all libraries of a test."""
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(precompiled, "_PAYS_FROM", sys.maxsize)
    return tmp_path / "cache"


def libraries(cache: Path) -> list[Path]:
    """Everything in the cache that is a file."""
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_a_built_library_is_loaded_and_private(cache: Path) -> None:
    path = build(unit(), (), "answer")
    assert load(str(path)).answer() == 42
    assert load(str(path)) is load(str(path))
    for folder in (cache, cache / "cpp", path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_process_loads_so_many_libraries_and_keeps_those(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (str(build(unit(number), (), "answer")) for number in (42, 43))
    kept = load(first)
    monkeypatch.setattr(kernel_limit, "MOST_KERNELS", 0)
    with pytest.raises(OutOfResourcesError, match=r"has loaded 0 C\+\+ kernels, and keeps them"):
        load(second)
    assert load(first) is kept


def test_the_key_is_the_exact_text_the_flags_and_the_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(unit(), (), "answer")
    written = first.stat().st_mtime_ns
    assert build(unit(), (), "answer") == first
    assert first.stat().st_mtime_ns == written
    others = {build(unit(43), (), "answer"), build(unit(), ("-O1",), "answer")}
    monkeypatch.setenv(
        "CXX", "c++ -march=x86-64" if sys.platform == "linux" and os.uname().machine == "x86_64" else "c++"
    )
    assert first not in others
    assert len(others) == 2
    # characters that a C++ tokeniser may take for a comment or a string
    slashes = [build(unit(f"'{sign}' + '/*' + 0*'*/'"), (), "answer") for sign in "ab"]
    assert len({first, *slashes}) == 3
    if "march" in os.environ["CXX"]:
        # the flag is part of the command, and so of the compiler's identity
        assert build(unit(), (), "answer") not in {first, *others}


@pytest.mark.parametrize("damage", [b"", b"not a library", None])
def test_a_damaged_library_is_built_again(cache: Path, damage: bytes | None) -> None:
    path = build(unit(), (), "answer")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert not is_intact(path)
    with pytest.raises(CompileError, match="gone or damaged"):
        load(str(path))
    again = build(unit(), (), "answer")
    assert load(str(again)).answer() == 42
    assert libraries(cache) == [again]


def test_a_library_that_is_gone_is_an_error_of_ours(cache: Path) -> None:
    with pytest.raises(CompileError, match="gone or damaged"):
        load(str(cache / "nothing.so"))


def test_nothing_is_left_behind_by_a_failed_compilation(cache: Path) -> None:
    with pytest.raises(CompileError, match=r"answer: .*error"):
        build("this is not C++", (), "answer")
    assert libraries(cache) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("folder", ["", "cpp"])
def test_a_cache_that_someone_else_owns_is_refused(cache: Path, folder: str) -> None:
    build(unit(), (), "answer")
    os.chown(cache / folder, 65_534, 65_534)
    with pytest.raises(RegistryError, match="belongs to user 65534") as raised:
        build(unit(), (), "answer")
    assert "KERNEL_REGISTRY_CACHE" in raised.value.hint


def test_a_cache_that_others_can_write_to_is_refused(cache: Path) -> None:
    build(unit(), (), "answer")
    (cache / "cpp").chmod(0o777)
    with pytest.raises(RegistryError, match=r"cpp can be written to by others \(mode 0777\)") as raised:
        build(unit(), (), "answer")
    assert "chmod go-w" in raised.value.hint


def test_a_permissive_umask_makes_no_folder_that_others_can_write_to(cache: Path) -> None:
    before = os.umask(0o002)
    try:
        path = build(unit(), (), "answer")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (cache, cache / "cpp", path.parent)} == {0o700}


def test_the_root_may_be_a_link_to_a_folder_that_is_ones_own(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "elsewhere")
    path = build(unit(), (), "answer")
    assert path.is_relative_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o770)
    with pytest.raises(RegistryError, match="elsewhere can be written to by others"):
        build(unit(), (), "answer")


def test_a_link_inside_the_cache_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cache.mkdir(mode=0o700)
    (cache / "cpp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RegistryError, match="not a folder"):
        build(unit(), (), "answer")


@pytest.mark.thorough
def test_processes_that_compile_the_same_at_once_all_succeed(cache: Path) -> None:
    code = (
        "import os; from registry.backends.cpp.compiler import build, load\n"
        "child = os.fork()\n"
        f"assert load(str(build({unit()!r}, (), 'answer'))).answer() == 42\n"
        "assert child == 0 or os.waitpid(child, 0)[1] == 0\n"
    )
    done = fresh.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert all(is_intact(path) for path in libraries(cache))
    written = {path: path.stat().st_mtime_ns for path in libraries(cache)}
    assert build(unit(), (), "answer") in written
    assert {path: path.stat().st_mtime_ns for path in libraries(cache)} == written
