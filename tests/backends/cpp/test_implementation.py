"""C++ kernels: what a launch becomes, how arguments reach the function, threads, forks, errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.artifact import Artifact, Built, Signature, Target
from registry.backends.cpp import CppImplementation, CppKernel
from registry.backends.cpp.compiler import find_compiler
from registry.device import Device
from registry.errors import CompileError, InvalidDefinitionError, MisnamedError
from registry.implementation import Launch
from registry.problem import Arguments, Problem, TensorSpec
from registry.space import Config

TARGET = Target("cpu", "here", 1)
PROBLEM = Problem("probe", {"n": 4})

SEEN = CppKernel(
    """
    extern "C" void seen(double *y, const float *x, const float *absent, float eps, double half, bool flag, int32_t n,
                         int64_t large) {
        const double all[] = {x[0], absent ? 1.0 : 0.0, eps, half, double(flag), double(n), double(large), SCALE};
        std::memcpy(y, all, sizeof all);
    }
    """,
    "seen",
)
SUM = CppKernel(
    """
    static void parts(int64_t *y, int64_t n, int64_t threads) {
        registry::parallel(threads, [=](int64_t part, int64_t parts) {
            const registry::Span mine = registry::share(n, part, parts);
            y[part] = mine.end - mine.begin;
            y[8 + part] = parts;
        });
    }
    """,
    "parts",
)


class Probe(CppImplementation):
    """Whatever launches a test wants."""

    op = "probe"
    name = "probe.cpp"

    def __init__(self, *launches: Launch) -> None:
        self.wanted = launches

    def launch(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
        return self.wanted


def run(
    implementation: CppImplementation, outputs: Mapping[str, torch.Tensor], arguments: Mapping[str, Any]
) -> tuple[Artifact, ...]:
    """Compile, bind and call once."""
    specs = {name: TensorSpec.of(v) if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    signature = Signature(Arguments("probe", specs), {name: TensorSpec.of(v) for name, v in outputs.items()})
    device = Device.of("cpu")
    variants = implementation.variants(PROBLEM, {}, device, signature)
    artifacts = tuple(implementation.compile(variant, TARGET) for variant in variants)
    bound = implementation.bind(PROBLEM, {}, device, Built(signature, artifacts))
    bound(tuple(outputs.values()), tuple(arguments.values()), ())
    return artifacts


def parts(threads: int) -> torch.Tensor:
    """How SUM shared 10 things out."""
    y = torch.zeros(16, dtype=torch.int64)
    run(Probe(Launch(SUM, grid=(1,), args=("y", 10, threads))), {"y": y}, {})
    return y


def refusal(source: str, *args: str | int | float) -> CompileError:
    """What compiling a kernel ``f`` raises."""
    launch = Launch(CppKernel(source, "f"), grid=(1,), args=("y", *args))
    with pytest.raises(CompileError) as raised:
        run(Probe(launch), {"y": torch.zeros(1)}, {})
    return raised.value


def test_every_kind_of_argument_arrives_as_the_kernel_declares_it() -> None:
    y = torch.zeros(8, dtype=torch.float64)
    arguments = {"x": torch.tensor([2.5]), "absent": None, "eps": 1e-6, "flag": True}
    args = ("y", "x", "absent", "eps", 0.5, "flag", -3, 2**40)
    run(Probe(Launch(SEEN, grid=(1,), args=args, constants={"SCALE": 0.25})), {"y": y}, arguments)
    assert y.tolist() == [2.5, 0.0, torch.tensor(1e-6).item(), 0.5, 1.0, -3.0, float(2**40), 0.25]


def test_several_launches_run_in_order() -> None:
    twice = CppKernel("void twice(float *y, float add) { *y = *y * 2 + add; }", "twice")
    y = torch.tensor([1.0])
    launches = [Launch(twice, grid=(1,), args=("y", add)) for add in (1.0, 5.0)]
    artifacts = run(Probe(*launches), {"y": y}, {})
    assert y.item() == 11.0
    assert artifacts[0].path == artifacts[1].path  # the number is an argument, not part of the variant


@pytest.mark.thorough
def test_a_thread_count_is_an_upper_bound_and_the_shares_cover_everything() -> None:
    one, many = parts(1), parts(8)
    assert one[0] == 10
    assert one[8] == 1
    assert many[:8].sum() == 10
    assert many[8] <= max(torch.get_num_threads(), 1)


def test_torch_set_num_threads_bounds_the_team() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert parts(8)[8] == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_one_openmp_runtime_serves_torch_and_the_kernels() -> None:
    torch.softmax(torch.randn(512, 512), -1)
    parts(2)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libgomp" in line}
    assert len(mapped) <= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_runs_with_one_thread_instead_of_waiting_for_ever() -> None:
    torch.softmax(torch.randn(512, 512), -1)
    parts(2)
    child = os.fork()
    if child == 0:
        shared = parts(2)
        os._exit(0 if shared[8] == 1 and shared[0] == 10 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_call_the_same_kernel_at_once() -> None:
    fill = CppKernel(
        "void fill(int64_t *y, int64_t n, int64_t v) { for (int64_t i = 0; i < n; ++i) y[i] = v; }", "fill"
    )
    found: dict[int, bool] = {}

    def work(number: int) -> None:
        y = torch.zeros(5_000, dtype=torch.int64)
        for round_ in range(20):
            launch = Launch(fill, grid=(1,), args=("y", 5_000, number * 100 + round_))
            run(Probe(launch), {"y": y}, {})
            found[number] = found.get(number, True) and bool((y == number * 100 + round_).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_bad_source_shows_the_compilers_first_lines() -> None:
    fault = refusal("void f(float *y) { *y = undeclared; }")
    assert "undeclared" in fault.message
    assert "test_implementation.py:169: f: f.cpp:1:" in fault.message
    assert "undeclared" in fault.hint


@pytest.mark.parametrize(
    ("source", "args", "said"),
    [
        ("using P = float *; void f(P y, P x) {}", (1,), "gives an int where the kernel takes no integer"),
        ("using N = int64_t; void f(float *y, N n) {}", (1.0,), "gives a float where the kernel takes no float"),
        ("using N = int64_t; void f(N y) {}", (), "gives a tensor where the kernel takes no pointer"),
        ("using P = float *;\n#define ONE P y\nvoid f(ONE) {}", (1, 2), "gives another number of arguments"),
    ],
)
def test_a_launch_that_does_not_fit_the_function_is_a_compile_error(
    source: str, args: tuple[int | float, ...], said: str
) -> None:
    fault = refusal(source, *args)
    assert said in str(fault)


def test_definitions_that_cannot_work_are_refused() -> None:
    for launch, said in [
        (Launch("text", grid=(1,), args=()), "expected CppKernel"),
        (Launch(SUM, grid=(1,), args=("nobody", 1, 1)), "'nobody'"),
        (Launch(SUM, grid=(1,), args=("y", 1, 1), constants={"not a name": 1}), "no C\\+\\+ identifier"),
    ]:
        with pytest.raises(InvalidDefinitionError, match=said):
            run(Probe(launch), {"y": torch.zeros(1, dtype=torch.int64)}, {})


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (reason,) = Probe().unsupported(PROBLEM, Device.of("cpu"))
    assert "no-such-compiler" in reason
    assert "CXX" in reason
    assert "no-such-compiler" in refusal("void f(float *y) {}").message


def test_a_compiler_without_openmp_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "clang++"
    compiler.write_text("#!/bin/sh\necho \"clang: error: unsupported option '-fopenmp'\" >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    (reason,) = Probe().unsupported(PROBLEM, Device.of("cpu"))
    assert "has no OpenMP" in reason
    assert "libomp" in reason


def test_the_fingerprint_covers_the_kernels_of_the_class_and_ignores_comments() -> None:
    def of(source: str) -> str:
        other: type[Probe] = type("Other", (Probe,), {"KERNEL": CppKernel(source, "f")})
        return other().fingerprint()

    assert of("void f() {}") == of("void f() {} // nothing")
    assert of("void f() {}") != of("void f() { return; }")


def test_the_fingerprint_covers_the_kernels_of_base_classes() -> None:
    def of(source: str) -> str:
        base: type[Probe] = type("Base", (Probe,), {"KERNEL": CppKernel(source, "f")})
        other: type[Probe] = type("Other", (base,), {})
        return other().fingerprint()

    assert of("void f() {}") == of("void f() {} // nothing")
    assert of("void f() {}") != of("void f() { return; }")


def test_the_systems_compiler_is_found_once() -> None:
    assert find_compiler() is find_compiler()


class Misspelling(Probe):
    """A launch that reads ``tt`` of its configuration, or of a mapping of its own."""

    own: Mapping[str, int] = {"t": 1}

    def __init__(self, *, reads_config: bool) -> None:
        self.reads_config = reads_config

    def launch(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
        threads = (config if self.reads_config else self.own)["tt"]
        return (Launch(SUM, grid=(1,), args=("y", 10, threads)),)


def test_a_parameter_that_the_configuration_lacks_is_told_with_those_it_has() -> None:
    misspelling = Misspelling(reads_config=True)
    place = r"\(.*test_implementation\.py:\d+\)"
    with pytest.raises(MisnamedError, match=rf"unknown parameter 'tt' in launch\(\) of probe\.cpp {place}") as told:
        misspelling.launches(PROBLEM, {"t": 4, "rows": 1}, Device.of("cpu"))
    assert told.value.hint == "did you mean t?"


def test_a_key_of_another_mapping_that_a_launch_lacks_stays_what_it_is() -> None:
    with pytest.raises(KeyError, match="'tt'") as told:
        Misspelling(reads_config=False).launches(PROBLEM, {"t": 4}, Device.of("cpu"))
    assert not isinstance(told.value, MisnamedError)


@pytest.mark.parametrize("value", [[1, 2], None, {"a": 1}, float("nan"), torch.float32, 1j])
def test_a_constant_that_is_no_macro_is_told_with_the_line_of_the_launch(value: Any) -> None:
    launch = Launch(SUM, grid=(1,), args=("y", 10, 1), constants={"A": value})
    told = rf"Launch at .*test_implementation\.py:{launch.line[1]}: the constant A is .*\n.*expected a bool, a finite"
    with pytest.raises(InvalidDefinitionError, match=told):
        run(Probe(launch), {"y": torch.zeros(16, dtype=torch.int64)}, {})


def test_numbers_of_numpy_are_macros() -> None:
    numpy = pytest.importorskip("numpy")
    fill = CppKernel("void fill(double *y) { y[0] = A; y[1] = B; }", "fill")
    y = torch.zeros(2, dtype=torch.float64)
    constants = {"A": numpy.int64(3), "B": numpy.float32(0.5)}
    run(Probe(Launch(fill, grid=(1,), args=("y",), constants=constants)), {"y": y}, {})
    assert y.tolist() == [3.0, 0.5]
