"""Code that a process runs against the files that the tuning run has read: edited files and other bytecode are told."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.implementation import Implementation
from registry.tuner.jobs import Entrant, TrialJob
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.workers.source_texts import source_digest, source_fault
from registry.tuner.workers.worker import Worker

CPU = Device.of("cpu")
TEXT = """
import torch
import registry

KERNEL_REGISTRY_API = 1

class Square(registry.Implementation):
    op, name = "square", "edited.square"
    device_types = frozenset({"cpu"})

    def bind(self, problem, config, device, built):
        return lambda outputs, arguments, scratch: torch.mul(arguments[0], arguments[0], out=outputs[0])

@registry.implements("square")
def square_implementations():
    return [Square()]
"""
EDITED = TEXT.replace("torch.mul(arguments[0]", "torch.mul(arguments[-1]")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "edited_square.py"
    made.write_text(TEXT)
    return made


def loaded(file: Path) -> tuple[Catalog, Implementation]:
    catalog = Catalog()
    catalog.load_file(file)
    return catalog, catalog.implementation("square", "edited.square")


def test_a_file_that_is_as_it_was_has_no_fault(file: Path) -> None:
    digest = source_digest(loaded(file)[1])
    assert digest
    assert source_fault(loaded(file)[1], digest) == source_fault(loaded(file)[1], "") == ""


def test_a_file_that_was_edited_since_the_run_began_is_told(file: Path) -> None:
    digest = source_digest(loaded(file)[1])
    file.write_text(EDITED)
    told = source_fault(loaded(file)[1], digest)
    assert "edited.square: a file of it has changed since the run began" in told
    assert "run again" in told


def test_its_trial_is_an_error(file: Path) -> None:
    digest = source_digest(loaded(file)[1])
    file.write_text(EDITED)
    entrant = Entrant("edited.square", {}, source=digest)
    job = TrialJob(1, "square", {"n": 100, "dtype": "float32"}, entrant, dict(TimingProtocol.of(CPU).details), 0)
    found = Worker(loaded(file)[0], CPU).trial(job, lambda step: None)
    assert (found.status, "has changed since the run began" in found.message) == ("error", True)


WITH_HELPERS = """
import importlib.util
import sys
from pathlib import Path

import registry

sys.path.append(str(Path(__file__).parent))
import a_helper

SOURCE = (Path(__file__).parent / "kernels" / "square.cpp").read_text()
SPEC = importlib.util.spec_from_file_location("by_name", Path(__file__).parent / "by_name.py")

""" + TEXT.replace("torch.mul(", "a_helper.multiply(")
HELPERS = {
    "a_helper.py": "import torch\nimport of_the_helper\ndef multiply(*tensors, out): torch.mul(*tensors, out=out)\n",
    "of_the_helper.py": "FACTOR = 1\n",
    "by_name.py": "FACTOR = 1\n",
    "kernels/square.cpp": "void square(float* y) { y[0] *= 1; }\n",
}


@pytest.fixture
def file_with_helpers(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plugin file that imports a module beside it, and reads a kernel's source; it is imported for the first time."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (file.parent / "kernels").mkdir()
    for name, text in HELPERS.items():
        (file.parent / name).write_text(text)
    file.write_text(WITH_HELPERS)
    yield file
    forget_helpers()


def forget_helpers() -> None:
    """Let the helpers be imported anew, as in a fresh process."""
    for name in HELPERS:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_or_a_kernel_source_that_was_edited_is_told(file_with_helpers: Path, name: str) -> None:
    digest = source_digest(loaded(file_with_helpers)[1])
    forget_helpers()
    assert source_fault(loaded(file_with_helpers)[1], digest) == ""
    helper = file_with_helpers.parent / name
    helper.write_text(HELPERS[name].replace("1", "2").replace("torch.mul(", "torch.add("))
    forget_helpers()
    told = source_fault(loaded(file_with_helpers)[1], digest)
    assert "edited.square: a file of it has changed since the run began" in told
    assert str(helper) in told


LATE = TEXT.replace(
    "    def bind", "    def helps(self):\n        import a_late_helper\n        return a_late_helper\n\n    def bind"
)
LATE_HELPERS = {
    "no_final_newline": b"FACTOR = 1",
    "several": b"FACTOR = 1\n\n\n",
    "carriage_returns": b"FACTOR = 1\r\nOTHER = 2",
    "byte_order_mark": b"\xef\xbb\xbfFACTOR = 1 # \xc3\xa9",
    "latin_1": b"# -*- coding: latin-1 -*-\nFACTOR = 1\nNAME = '\xe9'",
}


@pytest.fixture(params=LATE_HELPERS.values(), ids=list(LATE_HELPERS))
def late_helper(request: pytest.FixtureRequest, file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A helper module that a plugin file imports when it is called, not before."""
    monkeypatch.syspath_prepend(str(file.parent))
    file.write_text(LATE)
    helper = file.parent / "a_late_helper.py"
    helper.write_bytes(request.param)
    yield helper
    sys.modules.pop("a_late_helper", None)


@pytest.mark.parametrize("first", ["run", "worker"])
def test_a_helper_that_only_one_process_has_imported_is_the_same(file: Path, late_helper: Path, first: str) -> None:
    found = loaded(file)[1]
    if first == "run":
        found.helps()  # type: ignore[attr-defined]
    digest = source_digest(found)
    assert str(late_helper) in digest
    sys.modules.pop("a_late_helper", None)
    assert source_fault(found, digest) == ""
    found.helps()  # type: ignore[attr-defined]
    assert source_fault(found, digest) == ""
    assert source_digest(found) == digest


def test_a_package_is_the_same_before_and_after_it_imports_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "a_packaged_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(LATE.replace("import a_late_helper", "from . import a_late_helper"))
    (folder / "a_late_helper.py").write_text("from .constants import FACTOR")
    (folder / "constants.py").write_text("FACTOR = 1")
    names = ["a_packaged_plugin", "a_packaged_plugin.a_late_helper", "a_packaged_plugin.constants"]
    found = importlib.import_module(names[0]).Square()
    try:
        digest = source_digest(found)
        assert [name for name, _, _ in json.loads(digest)] == names
        found.helps()
        assert (source_fault(found, digest), source_digest(found)) == ("", digest)
        for name in names[1:]:
            del sys.modules[name]
        assert source_fault(found, digest) == ""
        (folder / "constants.py").write_text("FACTOR = 2")
        assert str(folder / "constants.py") in source_fault(found, digest)
    finally:
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("imported", [False, True])
def test_a_helper_that_was_edited_before_it_is_imported_is_told(file: Path, late_helper: Path, imported: bool) -> None:
    found = loaded(file)[1]
    digest = source_digest(found)
    late_helper.write_bytes(late_helper.read_bytes().replace(b"= 1", b"= 17"))
    if imported:
        found.helps()  # type: ignore[attr-defined]
    assert str(late_helper) in source_fault(found, digest)


@pytest.mark.parametrize("text", [b"\xff = 1\n", b"# coding: no_such\nFACTOR = 1\n"])
@pytest.mark.parametrize("late_helper", [b"FACTOR = 1"], indirect=True)
def test_a_helper_that_can_be_read_no_more_is_told(file: Path, late_helper: Path, text: bytes) -> None:
    digest = source_digest(loaded(file)[1])
    late_helper.write_bytes(text)
    assert str(late_helper) in source_fault(loaded(file)[1], digest)


@pytest.mark.parametrize("text", [LATE_HELPERS["byte_order_mark"], LATE_HELPERS["latin_1"]])
def test_a_file_that_is_loaded_by_its_name_may_have_an_encoding(file_with_helpers: Path, text: bytes) -> None:
    helper = file_with_helpers.parent / "by_name.py"
    helper.write_bytes(text)
    digest = source_digest(loaded(file_with_helpers)[1])
    assert source_fault(loaded(file_with_helpers)[1], digest) == ""
    helper.write_bytes(text.replace(b"= 1", b"= 17"))
    assert str(helper) in source_fault(loaded(file_with_helpers)[1], digest)


def test_a_helper_whose_bytecode_is_another_text_is_told(file_with_helpers: Path) -> None:
    digest = source_digest(loaded(file_with_helpers)[1])
    helper = sys.modules["a_helper"]
    other = dict[str, object]()
    exec(compile("def multiply(*tensors, out): ...", str(helper.__file__), "exec"), other)
    vars(helper)["multiply"] = other["multiply"]
    assert "multiply is not what its file" in source_fault(loaded(file_with_helpers)[1], digest)


@pytest.fixture
def with_other_bytecode(file: Path, monkeypatch: pytest.MonkeyPatch) -> Implementation:
    """The implementation of a module whose bytecode is that of another text of the same length and time."""
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.syspath_prepend(str(file.parent))
    other = TEXT.replace("outputs[0])", "outputs[1])")
    file.write_text(other)
    stamp = (1_000_000_000, 1_000_000_000)
    os.utime(file, stamp)
    py_compile.compile(str(file), doraise=True)
    file.write_text(TEXT)
    os.utime(file, stamp)
    spec = importlib.util.find_spec(file.stem)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module.Square()  # type: ignore[no-any-return]


BROKEN_IN_TWO = """

@torch.compile(backend="eager")
def in_parts(x):
    y = x * x
    torch._dynamo.graph_break()
    return y + 0.0
"""


def test_what_torch_compile_adds_to_a_module_after_a_graph_break_is_no_fault(file: Path) -> None:
    file.write_text(TEXT + BROKEN_IN_TWO)
    implementation = loaded(file)[1]
    module = sys.modules[type(implementation).__module__]
    names = {*vars(module)}
    module.in_parts(torch.ones(3))
    assert any("resume" in name for name in {*vars(module)} - names)
    assert source_fault(implementation, source_digest(implementation)) == ""
    # the name alone is not believed
    code = compile("def torch_dynamo_resume_in_parts_at_1(): ...", str(module.__file__), "exec").co_consts[0]
    vars(module)["torch_dynamo_resume_in_parts_at_1"] = FunctionType(code, {})
    assert "torch_dynamo_resume_in_parts_at_1" in source_fault(implementation, source_digest(implementation))


def test_bytecode_that_is_not_of_the_file_is_told(with_other_bytecode: Implementation) -> None:
    told = source_fault(with_other_bytecode, "")
    assert "Square.bind is not what its file" in told
    assert "__pycache__" in told


def test_a_class_without_a_file_has_no_digest() -> None:
    own = {"__module__": "a_notebook", "name": "a.b", "op": "square", "bind": lambda *_: min}
    found = type("Made", (Implementation,), own)()
    assert source_digest(found) == source_fault(found, "") == ""
