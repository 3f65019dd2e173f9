"""Inductor's code, compiled ahead, loaded by whoever binds, and compiled on the spot where that is not possible."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

import registry
from registry.artifact import Artifact, Built, Signature, Target
from registry.backends.inductor import InductorImplementation
from registry.backends.inductor import artifact as inductor_artifact
from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, Plan, build
from registry.errors import CompileError
from registry.paths import compiler_caches
from registry.problem import Arguments, TensorSpec

from ... import fresh

SQUARE = next(op for op in BOX if op.name == "square")
CPU = Device.of("cpu")


class Compiled(InductorImplementation):
    """square."""

    op = "square"
    name = "mine.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """``x * x``."""
        (x,) = values
        return torch.mul(x, x)


class Broken(Compiled):
    """An operator that Inductor cannot know the shape of."""

    name = "mine.broken"

    def function(self, *values: Any) -> torch.Tensor:
        """A value that depends on the data."""
        (x,) = values
        factor = int(x.sum())
        return torch.mul(x, factor)


def _signature(n: int) -> Signature:
    spec = TensorSpec.contiguous((n,), torch.float32)
    return Signature(Arguments("square", {"x": spec}), {"y": spec})


def _variant(implementation: InductorImplementation, n: int = 64) -> Any:
    problem = SQUARE.problem_of({"n": n, "dtype": "float32"})
    (variant,) = implementation.variants(problem, {}, CPU, _signature(n))
    return variant


@pytest.mark.thorough
def test_what_was_compiled_is_a_file_that_another_process_uses_without_compiling(tmp_path: Path) -> None:
    artifact = Compiled().compile(_variant(Compiled(), 64), CPU.target)
    assert Path(artifact.path).exists()
    code = f"""
import torch, torch._inductor.graph
from pathlib import Path
from registry.backends.inductor import artifact as inductor_artifact
def refuse(*args, **kwargs): raise AssertionError("it compiles")
torch._inductor.graph.GraphLowering.run = refuse
x = torch.randn(64)
y = inductor_artifact.load_file(Path({artifact.path!r}))(x)
assert torch.equal(y[0] if isinstance(y, (list, tuple)) else y, x * x)
"""
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = fresh.run("-c", code, env=environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_nothing_is_timed_while_it_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    timed: list[bool | None] = []
    codegen = GraphLowering.codegen

    def seen(graph: GraphLowering) -> Any:
        timed.append(config.triton.autotune_at_compile_time)
        return codegen(graph)

    monkeypatch.setattr(GraphLowering, "codegen", seen)
    # what Inductor finds in its cache it does not compile: a number that no run had before
    shift = time.time_ns() * 1e-18
    spec = TensorSpec.contiguous((33, 65), torch.float32)
    assert inductor_artifact.compile_to_file(lambda x: x.exp() - shift, [spec], 1, tmp_path / "artifact")
    assert timed == [False]


def test_compiling_again_finds_the_file() -> None:
    variant = _variant(Compiled(), 64)
    first = Compiled().compile(variant, CPU.target)
    written = Path(first.path).stat().st_mtime_ns
    assert Compiled().compile(variant, CPU.target) == first
    assert Path(first.path).stat().st_mtime_ns == written


class _Inductor:
    """Records what two threads that compile at once see of each other."""

    def __init__(self) -> None:
        self.meeting = threading.Barrier(2)
        self.seen: list[int] = []
        self.paths: list[str] = []
        self.fault: Exception | None = None

    def standalone_compile(self, graph: Any, fakes: Any, **options: Any) -> _Inductor:
        from torch._inductor import config

        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(timeout=0.2)
        self.seen.append(config.cpp.threads)
        return self

    def save(self, path: str, **_: str) -> None:
        self.paths.append(path)
        Path(path).write_text("artifact")
        if self.fault:
            raise self.fault


def test_threads_that_compile_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inductor, file = _Inductor(), tmp_path / "saved.bin"
    monkeypatch.setattr(inductor_artifact, "_inductor", lambda: inductor)
    spec = TensorSpec.contiguous((4,), torch.float32)

    def compiled(threads: int) -> bool:
        return inductor_artifact.compile_to_file(torch.sin, [spec], threads, file)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(compiled, (3, 5))) == [True, True]
    assert sorted(inductor.seen) == [3, 5]
    assert len(set(inductor.paths)) == 2
    assert list(tmp_path.iterdir()) == [file]
    file.unlink()
    inductor.fault = OSError("the disk is full")
    with pytest.raises(OSError, match="disk is full"):
        compiled(1)
    assert list(tmp_path.iterdir()) == []


def test_shapes_are_told_apart_and_equal_ones_are_not() -> None:
    assert _variant(Compiled(), 64).key != _variant(Compiled(), 65).key
    assert _variant(Compiled(), 64).key == _variant(Compiled(), 64).key


def test_a_damaged_file_is_compiled_anew(tmp_path: Path) -> None:
    variant = _variant(Compiled(), 32)
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(b"no artifact")
    problem = SQUARE.problem_of({"n": 32, "dtype": "float32"})
    built = Built(_signature(32), (Artifact(variant, str(damaged)),))
    run = Compiled().bind(problem, {}, CPU, built)
    x = torch.randn(32)
    assert torch.equal(run((), (x,), ()), x * x)


@pytest.mark.thorough
def test_an_attribute_may_change_from_call_to_call() -> None:
    op = next(op for op in BOX if op.name == "rms_norm")
    x, weight = torch.full((2, 64), 1e-3), torch.ones(64)

    class Norm(Compiled):
        op = "rms_norm"

        def function(self, *values: Any) -> torch.Tensor:
            x, weight, eps = values
            return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    arguments = op.arguments((x, weight, 1e-6))
    plan = build(op, Candidate(Norm(), {}), op.pose(arguments), arguments, CPU)
    for eps in (1e-6, 1e-2, 1e-6):
        torch.testing.assert_close(plan(x, weight, eps), op.reference(x, weight, eps))


def test_without_the_private_interface_torch_compile_serves_many_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config

    monkeypatch.setattr(inductor_artifact, "available", lambda: False)
    with warnings.catch_warnings(), config.patch(recompile_limit=1):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        for n in (2, 3):  # more than the recompilations after which Dynamo gives up on one function
            problem = SQUARE.problem_of({"n": n, "dtype": "float32"})
            x = torch.randn(n)
            plan = build(SQUARE, Candidate(Compiled(), {}), problem, SQUARE.arguments((x,)), CPU)
            assert plan.artifacts[0].path == ""
            assert torch.equal(plan(x), x * x)


def _compilations() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _untuned(implementation: InductorImplementation, x: torch.Tensor) -> Plan:
    problem = SQUARE.problem_of({"n": x.numel(), "dtype": "float32"})
    return build(SQUARE, Candidate(implementation, {}), problem, SQUARE.arguments((x,)), CPU, untuned=True)


@pytest.mark.thorough
def test_sizes_that_were_not_tuned_share_their_compilations() -> None:
    implementation, before = Compiled(), _compilations()
    for n in range(100, 120):
        x = torch.randn(n)
        plan = _untuned(implementation, x)
        for _ in range(2):
            assert torch.equal(plan(x), x * x)
    assert _compilations() - before == 2  # the first size, then any size


def test_an_untuned_size_that_is_compiled_already_is_not_shared() -> None:
    x, implementation = torch.randn(64), Compiled()
    build(
        SQUARE,
        Candidate(implementation, {}),
        SQUARE.problem_of({"n": 64, "dtype": "float32"}),
        SQUARE.arguments((x,)),
        CPU,
    )
    before = _compilations()
    plan = _untuned(implementation, x)
    assert plan.artifacts
    assert torch.equal(plan(x), x * x)
    assert _compilations() == before


@pytest.mark.parametrize("sizes", [(9,), pytest.param((9, 10), marks=pytest.mark.thorough)], ids=len)
@pytest.mark.thorough
def test_untuned_sizes_keep_layouts_and_attributes_apart(sizes: tuple[int, ...]) -> None:
    op = next(op for op in BOX if op.name == "rms_norm")
    (implementation,) = (each for each in registry.implementations("rms_norm") if each.name == "torch.compile")
    for rows in sizes:
        for x, eps in (
            (torch.randn(rows, 64), 1e-6),
            (torch.randn(rows, 64), 0.5),
            (torch.randn(rows, 128)[:, ::2], 0.5),
        ):
            values = x, torch.randn(64), eps
            arguments = op.arguments(values)
            plan = build(op, Candidate(implementation, {}), op.pose(arguments), arguments, CPU, untuned=True)
            torch.testing.assert_close(plan(*values), op.reference(*values))


def test_what_inductor_refuses_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match=r"mine\.broken: \w+: "):
        Broken().compile(_variant(Broken()), CPU.target)


def test_a_target_that_is_not_here_is_left_to_where_it_is() -> None:
    assert Compiled().compile(_variant(Compiled()), Target("cuda", "sm_00")).path == ""


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SQUARE.problem_of({"n": 32, "dtype": "float32"})
    assert list(Compiled().unsupported(problem, CPU)) == []
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in next(Compiled().unsupported(problem, CPU))


@pytest.mark.parametrize("untuned", [False, True])
@pytest.mark.few(1)
def test_compiled_code_is_kept_where_nobody_else_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untuned: bool
) -> None:
    own, everybodys = tmp_path / "own", tmp_path / "torchinductor_root"
    variables = {"KERNEL_REGISTRY_CACHE": str(own), "TORCHINDUCTOR_CACHE_DIR": str(everybodys)}
    for name, value in {**variables, "TRITON_CACHE_DIR": "/elsewhere"}.items():
        monkeypatch.setenv(name, value)
    before, x = dict(os.environ), torch.randn(int(time.time_ns() % 997) + 1000)
    problem, arguments = SQUARE.problem_of({"n": len(x), "dtype": "float32"}), SQUARE.arguments((x,))
    # to precompile headers once more takes 8 s: test_headers says where they are
    with inductor_config.patch(cpp_cache_precompile_headers=False):
        plan = build(SQUARE, Candidate(Compiled(), {}), problem, arguments, CPU, untuned=untuned)
        assert torch.equal(plan(x), x * x)
    assert any(path.is_file() for path in (own / "torchinductor").rglob("*"))
    assert not any(path.is_file() for path in everybodys.rglob("*"))
    assert dict(os.environ) == before


def test_a_place_that_the_user_chose_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert compiler_caches() == {}
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(registry.RegistryError, match="can be written to by others"):
        compiler_caches()
