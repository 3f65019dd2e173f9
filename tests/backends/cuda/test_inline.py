"""Pasted C++: built once into the cache, loaded from there, both ways of handing over outputs, errors with the line."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from registry.artifact import Artifact, Built, Signature, Variant
from registry.backends.cuda import inline
from registry.backends.cuda.inline import InlineImplementation, load_inline
from registry.contracts import SQUARE
from registry.device import Device
from registry.errors import CompileError, InvalidDefinitionError
from registry.problem import Problem

from ... import fresh

CPU = Device.of("cpu")

SOURCE = """
// FACTOR is a macro from the config
torch::Tensor squared(torch::Tensor x) { return at::mul(at::mul(x, x), FACTOR); }
"""


class Squared(InlineImplementation):
    """x * x times a compiled factor."""

    op = "square"
    name = "test.squared"
    device_types = frozenset({"cpu"})
    cpp_source = SOURCE
    function = "squared"
    # a torch/extension.h that reads the bindings of a tensor and one operator: all of ATen's take twice the time
    flags = ("-O0", "-g0", f"-I{Path(__file__).parent / 'narrow'}")


def problem(**traits: bool) -> Problem:
    return Problem("square", {"n": 8, "dtype": "float32"}, traits)


def signature(x: torch.Tensor) -> Signature:
    arguments = SQUARE.arguments((x,))
    return Signature(arguments, SQUARE.output_specs(arguments, x.device))


def variant(implementation: InlineImplementation, config: dict[str, Any]) -> Variant:
    (made,) = implementation.variants(problem(), config, CPU, signature(torch.ones(8)))
    return made


@pytest.mark.thorough
def test_a_function_is_built_once_and_loaded_by_another_process() -> None:
    if reasons := inline.missing(with_cuda=False):
        pytest.skip("; ".join(reasons))
    implementation, config, x = Squared(), {"FACTOR": 3}, torch.arange(8.0)
    artifact = implementation.compile(variant(implementation, config), CPU.target)
    assert implementation.compile(variant(implementation, config), CPU.target) == artifact
    run = implementation.bind(problem(), config, CPU, Built(signature(x), (artifact,)))
    assert torch.equal(run((), (x,), ()), 3 * x * x)
    # the other way: the function takes the outputs first; the same module serves, whose second argument is absent
    script = (
        "import torch; from registry.backends.cuda.inline import load_module;"
        f"print(load_module({artifact.path!r}).squared(torch.full((2,), 2.0)).tolist())"
    )
    done = fresh.run("-c", script)
    assert done.stdout.strip() == "[12.0, 12.0]", done.stderr
    assert {path.suffix for path in Path(artifact.path).parent.iterdir()} == {".so"}


def test_a_damaged_module_or_another_compiler_means_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reasons := inline.missing(with_cuda=False):
        pytest.skip("; ".join(reasons))

    def built(variant: Variant, target: Any, name: str, folder: str) -> ModuleType:
        module = ModuleType(name)
        module.__file__ = str(Path(folder) / "module.so")
        Path(module.__file__).write_bytes(b"what a compiler takes 16 s for")
        builds.append(name)
        return module

    builds: list[str] = []
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(inline, "_build", built)
    made = variant(Squared(), {"FACTOR": 5})
    path = inline.built_module(made, CPU.target)
    assert inline.built_module(made, CPU.target) == path
    assert len(builds) == 1
    path.write_bytes(b"half")
    with pytest.raises(CompileError, match="gone or damaged"):
        inline.load_module(str(path))
    assert inline.built_module(made, CPU.target) == path
    assert len(builds) == 2
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'c++ (another version) 99.1'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert inline.built_module(made, CPU.target) != path


class _Module:
    """What a built module is to ``bind``: attributes that are functions."""

    @staticmethod
    def write(y: torch.Tensor, x: torch.Tensor) -> None:
        y.copy_(x * x)


def test_outputs_can_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = load_inline(
        "square",
        "mine.square",
        cpp_source="void write(torch::Tensor y, torch::Tensor x);",
        function="write",
        returns_outputs=False,
        device_types=["cpu"],
    )
    monkeypatch.setattr(inline, "load_module", lambda path: _Module)
    x, y = torch.arange(4.0), torch.empty(4)
    built = Built(signature(x), (Artifact(variant(implementation, {}), "unused.so"),))
    implementation.bind(problem(), {}, CPU, built)((y,), (x,), ())
    assert torch.equal(y, x * x)
    assert implementation.device_types == {"cpu"}
    assert implementation.arguments(signature(x)) == ("y", "x")


def test_contiguous_tensors_only_unless_a_subclass_says_otherwise() -> None:
    pasted = load_inline("square", "mine.square", cpp_source=SOURCE, function="squared", device_types=["cpu"])
    assert "tensors are not contiguous" in list(pasted.unsupported(problem(contiguous=False), CPU))
    assert "tensors are not contiguous" not in list(Squared().unsupported(problem(contiguous=False), CPU))


def test_a_missing_nvcc_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert any("nvcc" in reason for reason in inline.missing(with_cuda=True))
    assert not any("nvcc" in reason for reason in inline.missing(with_cuda=False))


def test_a_failed_build_shows_the_compilers_errors() -> None:
    if reasons := inline.missing(with_cuda=False):
        pytest.skip("; ".join(reasons))
    # a header that is not there: the compiler stops before it has read torch's
    flags = ("-include", "not_there.hpp")
    broken = load_inline("square", "mine.bad", cpp_source=SOURCE, function="squared", flags=flags)
    with pytest.raises(CompileError, match=r"squared failed:\n.*fatal error: not_there\.hpp: No such file"):
        broken.compile(variant(broken, {}), CPU.target)


def test_an_unknown_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = Squared()
    monkeypatch.setattr(implementation, "arguments", lambda signature: ("x", "weight"))
    monkeypatch.setattr(inline, "load_module", lambda path: inline)
    monkeypatch.setattr(implementation, "function", "load_module")
    built = Built(signature(torch.ones(8)), (Artifact(variant(implementation, {}), "unused.so"),))
    with pytest.raises(InvalidDefinitionError, match="names 'weight'"):
        implementation.bind(problem(), {}, CPU, built)


def test_fingerprints_ignore_comments_and_see_code() -> None:
    texts = [
        SOURCE,
        SOURCE.replace("// FACTOR is a macro", "// it is a macro"),
        SOURCE.replace("mul(x, x)", "mul(x, y)"),
    ]
    prints = [load_inline("square", "mine.square", cpp_source=text, function="squared").fingerprint() for text in texts]
    assert prints[0] == prints[1] != prints[2]
    keys = {variant(Squared(), config).key for config in ({"FACTOR": 1}, {"FACTOR": 2})}
    assert len(keys) == 2
