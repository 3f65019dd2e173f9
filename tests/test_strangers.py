"""The mistakes of a plugin file's author: each message has the line of the file, what is wrong, and the remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

import registry
from registry.author_code import where_defined
from registry.backends.cuda import nvrtc
from registry.cli import app
from registry.cli.main import new_registry_app
from registry.cli.tune import new_tune_app
from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warning import DispatchWarning
from registry.errors import CheckError
from registry.implementation import Implementation
from registry.testing import check_implementation
from registry.tuner.planning.problems import plan

from . import fresh

PROBLEM = {"n": 1000, "dtype": "float32"}
HEAD = """\
import torch
import registry
from registry import Implementation, Launch, Space
from registry.backends import CppImplementation, CppKernel

KERNEL = CppKernel(r'''
void square(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i];
}
''', "square")
"""
PYTHON = """
class Mine(Implementation):
    op, name, device_types = "square", "mine.one", frozenset({"cpu"})
    def preference(self, problem, device):
        return 99.0
    def bind(self, problem, config, device, built):
        def run(outputs, arguments, scratch):
            torch.mul(arguments[0], arguments[0], out=outputs[0])
        return run
"""
CPP = """
class Mine(CppImplementation):
    op, name = "square", "mine.one"
    def launch(self, problem, config, device):
        return Launch(KERNEL, (1,), ("y", "x", problem.n))
"""
PREFERRED = "    def preference(self, problem, device):\n        return 99.0\n"
TAIL = """

@registry.implements("square")
def mine():
    return [Mine()]
"""


def stranger(folder: Path, body: str) -> tuple[Catalog, Implementation, Path]:
    """A catalog with a plugin file whose class has this body, the implementation, and the file."""
    file = folder / "kernels.py"
    file.write_text(HEAD + body + TAIL)
    catalog = Catalog()
    catalog.load_file(file)
    return catalog, catalog.implementation("square", "mine.one"), file


def loaded(file: Path) -> Implementation:
    """The implementation in a plugin file."""
    catalog = Catalog()
    catalog.load_file(file)
    return catalog.implementation("square", "mine.one")


def line_of(file: Path, text: str) -> str:
    """``kernels.py:12``: the only line that holds a text."""
    (line,) = [number for number, held in enumerate(file.read_text().splitlines(), 1) if text in held]
    return f"{file.name}:{line}"


def checked(implementation: Implementation) -> str:
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, SQUARE, problems=[PROBLEM, {**PROBLEM, "n": 64}], device="cpu")
    return str(raised.value)


UNSUPPORTED = PYTHON + "    def unsupported(self, problem, device):\n        {}\n"
SPACE = PYTHON + "    def space(self, problem, device):\n        {}\n"
EXPECTED = "expected reasons: yield each as a text"

ANSWERS = {
    "text": (UNSUPPORTED, 'return "too wide"', "unsupported() returned 'too wide', " + EXPECTED, "def unsupported"),
    "None": (UNSUPPORTED, "return None", "unsupported() returned None, " + EXPECTED, "def unsupported"),
    "True": (UNSUPPORTED, "return True", "unsupported() returned True, " + EXPECTED, "def unsupported"),
    "numbers": (UNSUPPORTED, "yield 7", "unsupported() returned [7], " + EXPECTED, "def unsupported"),
    "empty": (UNSUPPORTED, "yield ''", "unsupported() returned [''], " + EXPECTED, "def unsupported"),
    "mapping": (SPACE, "return {'B': [1]}", "space() returned {'B': [1]}, expected a Space, e.g. Space(", "def space"),
    "no space": (SPACE, "return None", "space() returned None, expected a Space, e.g. Space(", "def space"),
    "fault": (SPACE, "return Space(B=[problem.m])", "space() raised AttributeError:", "[problem.m]"),
    "division": (
        SPACE, 'return Space(B=[1]).require("odd", lambda c: 1 / 0)',
        "space: the constraint 'odd' raised ZeroDivisionError: division by zero (", "1 / 0",
    ),
    "raises": (UNSUPPORTED, "return [problem.cols]", "unsupported() raised AttributeError:", "[problem.cols]"),
    "raises ours": (
        UNSUPPORTED,
        "return [problem.traits['algned']]",
        "unsupported() raised UnknownNameError: unknown trait 'algned' (did you mean aligned?) (",
        "['algned']",
    ),
    "dtype": (SPACE, "return Space(ACC=[torch.float32])", "holds torch.float32, a torch.dtype", "Space(ACC"),
    "function": (SPACE, "return Space(ACT=[len])", "holds <built-in function len>", "Space(ACT"),
    "numpy": (SPACE, "import numpy; return Space(B=[numpy.int64(4)])", "a numpy.int64", "Space(B="),
    "tuple": (SPACE, "return Space(TILE=[(64, 64)])", "holds (64, 64), a tuple", "Space(TILE"),
    "no list": (SPACE, "return Space(B=4)", "the domain of 'B' is 4", "Space(B=4)"),
    "letters": (SPACE, 'return Space(L="row")', "the domain of 'L' is 'row'", "Space(L="),
    "constraint": (
        SPACE, 'return Space(num_warps=[1]).require("few", lambda c: c["num_warp"] < 9)',
        "unknown parameter 'num_warp' in the constraint 'few'", "lambda c:",
    ),
    "astray": (
        PYTHON, "    def space(self, problem, device):\n        return Space(B=[4])\n"
        "    def default(self, problem, device):\n        return {'B': 8}\n",
        "its default is not in its space: B=8 is not one of [4]", "def default",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "slip", "message", "place"), ANSWERS.values(), ids=list(ANSWERS))
def test_a_wrong_answer_is_told_with_its_line_and_takes_out_only_itself(
    tmp_path: Path, body: str, slip: str, message: str, place: str
) -> None:
    catalog, implementation, file = stranger(tmp_path, body.replace("{}", slip) if "{}" in body else body + slip)
    line = line_of(file, place)
    told = checked(implementation)
    assert message in told
    assert line in told
    assert "(2 problems)" in told
    assert told.count(f"{file.name}:") == 1
    dispatcher, x = Dispatcher(catalog, database=str(tmp_path / "tuning.db")), torch.randn(1000)
    with pytest.warns(DispatchWarning, match=re.escape(message)) as warned:
        torch.testing.assert_close(dispatcher.call("square", x), x * x)
    assert len(warned) == 1
    assert line in str(warned[0].message)
    (reason,) = [other.reasons[0] for other in dispatcher.explain("square", x).others if other.name == "mine.one"]
    (planned,) = plan([SQUARE.problem_of(PROBLEM)], catalog, Device.of("cpu"))
    (choice,) = [choice for choice in planned.choices if choice.implementation is implementation]
    assert not choice.supported
    assert message in reason
    assert message in choice.unsupported[0]
    assert line in choice.unsupported[0]


def test_explain_and_a_dry_run_agree_that_no_configuration_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constraints = '.require("fits", lambda c: c["B"] > 9).require("even", lambda c: c["B"] % 2 == 0)'
    _, implementation, file = stranger(tmp_path, SPACE.replace("{}", f"return Space(B=[3, 4]){constraints}"))
    reason = "its space has no valid configuration: of 2, 'fits' excludes 2, 'even' excludes 1"
    remedy = f"({file.parent.name}/{line_of(file, 'def space')}); unsupported() should have given a reason"
    reason = f"{reason} {remedy}"
    assert f"{reason} (2 problems)" in checked(implementation)
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("square:\n  - {n: 1000, dtype: float32}\n")
    dry = ["--shapes", str(shapes), "--device", "cpu", "--dry-run", "--plugin", str(file)]
    assert app.run(new_tune_app(), "tune", dry) == 0
    assert f"fault: mine.one of square: {reason}" in capsys.readouterr().out
    asked = ["explain", "square", "n=1000", "dtype=float32", "--device", "cpu", "--plugin", str(file)]
    assert app.run(new_registry_app(), "registry", asked) == 0
    told = capsys.readouterr()
    assert f"not    mine.one: {reason}" in told.out
    assert "warning" not in told.err


LAUNCHES = {
    "int": ("Launch(KERNEL, 4, ('y', 'x', problem.n))", "the grid is 4, expected a tuple of up to three ints"),
    "lambda": ("Launch(KERNEL, lambda meta: (1,), ('y',))", "launch() computes it from problem and config"),
    "fraction": ("Launch(KERNEL, (problem.n / 64,), ('y',))", "expected a tuple of up to three ints, none negative"),
    "negative": ("Launch(KERNEL, (-1,), ('y',))", "the grid is (-1,), expected a tuple of up to three ints"),
    "letters": ("Launch(KERNEL, (1,), 'yx')", "args is 'yx', expected a tuple"),
    "no arguments": ("Launch(KERNEL, (1,), None)", "args is None, expected a tuple (e.g. (\"y\", \"x\", problem.cols"),
    "misspelt": ("Launch(KERNEL, (1,), ('y', 'xx', problem.n))", "unknown argument 'xx' of kernel square"),
    "option": (
        "Launch(KERNEL, (1,), ('y', 'x', problem.n), options={'flag': ['-O1']})",
        "unknown option 'flag' in the Launch at",
    ),
    "dimension": ("Launch(KERNEL, (1,), ('y', 'x', problem.m))", "problem of square has no dimension 'm'"),
    "nothing": ("None", "launch() returned None, expected a Launch or several in order"),
}  # fmt: skip


@pytest.mark.parametrize(("launch", "message"), LAUNCHES.values(), ids=list(LAUNCHES))
def test_a_launch_that_cannot_be_is_told_with_its_line(tmp_path: Path, launch: str, message: str) -> None:
    body = CPP.replace('Launch(KERNEL, (1,), ("y", "x", problem.n))', launch)
    _, implementation, file = stranger(tmp_path, body)
    told = checked(implementation)
    assert message in told
    assert line_of(file, "def launch" if launch == "None" else "Launch(KERNEL") in told


KERNELS = {
    "too few": ("float *y, const float *x", "it takes 2 arguments (y, x), but the launch gives 3"),
    "too many": (
        "float *y, const float *x, int64_t n, int m",
        "takes 4 arguments (y, x, n, m), but the launch",
    ),
    "dtype": (
        "float *y, const double *x, int64_t n",
        "'x' is a tensor of float32, but the parameter x is double*",
    ),
    "bits": (
        "uint16_t *y, const float *x, int64_t n",
        "a tensor of float32, but the parameter y is uint16_t* (declare",
    ),
    "number": ("float *y, const float *x, float n", "int, but the parameter n is float (give float(...))"),
    "pointer": (
        "float *y, const float *x, const int *n",
        "but the parameter n is int* (args are in the kernel's order",
    ),
    "order": ("int64_t n, float *y, const float *x", "'y' is a tensor, but the parameter n is int64_t (args"),
}


@pytest.mark.parametrize(("parameters", "message"), KERNELS.values(), ids=list(KERNELS))
def test_a_cpp_kernel_of_other_parameters_is_told_before_it_is_compiled(
    tmp_path: Path, parameters: str, message: str
) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(HEAD.replace("float *y, const float *x, int64_t n", parameters) + CPP + TAIL)
    told = checked(loaded(file))
    assert message in told
    assert line_of(file, "Launch(KERNEL") in told
    assert f"kernel square ({tmp_path.name}/{line_of(file, 'void square')})" in told


def test_a_refused_cpp_kernel_is_told_with_the_line_of_its_text(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(HEAD.replace("x[i] * x[i]", "x[i] * z[i]") + CPP + TAIL)
    assert f"{tmp_path.name}/{line_of(file, 'z[i]')}: square: square.cpp:3" in checked(loaded(file))


def test_a_refused_text_that_is_put_together_is_told_with_the_line_of_its_launch(tmp_path: Path) -> None:
    body = CPP.replace("KERNEL,", "CppKernel(KERNEL.source.replace('* x[i]', '* z[i]'), 'square'),")
    _, implementation, file = stranger(tmp_path, body)
    assert f"{tmp_path.name}/{line_of(file, 'def launch')}: square: square.cpp:3" in checked(implementation)


CUDA = """
from registry.backends import CudaImplementation, CudaKernel
SOURCE = CudaKernel(r'''
template <typename T> __global__ void __launch_bounds__(256, 2) square(T *y, const T *__restrict__ x, long long n) {
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
''', "square<float>")
class Mine(CudaImplementation):
    op, name = "square", "mine.one"
    def launch(self, problem, config, device):
        return Launch(SOURCE, (-(-problem.n // 256),), ("y", "x", problem.n), options={"block": 256})
"""
CUDA_SLIPS = {
    "dtype": (
        '"square<float>"',
        '"square<double>"',
        "of float32, but the parameter y is double*",
        "template <",
    ),
    "int": (
        "long long n)",
        "int n)",
        "the parameter n is int (declare the parameter as long long in the",
        "template <",
    ),
    "many": ("long long n)", "long long n, bool b)", "takes 4 arguments (y, x, n, b), but the launch", "template <"),
    "name": ('"square<float>"', '"sqare<float>"', "did you mean square?", "return Launch"),
    "argument": ('("y", "x", problem.n)', '("y", "xs", problem.n)', "did you mean x?", "return Launch"),
    "option": ('"block"', '"blocks"', "did you mean block?", "return Launch"),
    "no block": (
        ', options={"block": 256}',
        "",
        "the option block is missing (expected the threads of",
        "return Launch",
    ),
    "text": ("x[i] * x[i]", "x[i] * z[i]", 'identifier "z" is undefined', "z[i]"),
}


@pytest.mark.skipif(bool(nvrtc.missing()), reason="no NVRTC")
@pytest.mark.parametrize(("right", "slip", "message", "place"), CUDA_SLIPS.values(), ids=list(CUDA_SLIPS))
def test_a_cuda_kernel_that_does_not_fit_its_launch_is_told_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right: str, slip: str, message: str, place: str
) -> None:
    file, shapes = tmp_path / "kernels.py", tmp_path / "shapes.yaml"
    file.write_text(HEAD.replace("void square(", "void other(") + CUDA.replace(right, slip) + TAIL)
    shapes.write_text("square:\n  - {n: 1000, dtype: float32}\n")
    options = ["--arch", "sm_90", "--plugin", str(file), "--shapes", str(shapes)]
    assert app.run(new_registry_app(), "registry", ["compile", *options]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert message in told
    assert line_of(file, place) in told


def test_a_result_that_is_ignored_is_told_by_the_check_and_by_the_tuner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = PYTHON.replace("torch.mul(arguments[0], arguments[0], out=outputs[0])", "return arguments[0] ** 2")
    _, implementation, file = stranger(tmp_path, body)
    message = "mine.one: run returned a tensor that is ignored"
    told = checked(implementation)
    assert message in told
    assert f"({file.parent.name}/{line_of(file, 'def bind')}): say returns_outputs = True" in told
    shapes, database = tmp_path / "shapes.yaml", tmp_path / "tuning.db"
    shapes.write_text("square:\n  - {n: [1000, 2000], dtype: float32}\n")
    options = ["--shapes", str(shapes), "--device", "cpu", "--plugin", str(file), "--implementations", "mine.one"]
    assert app.run(new_tune_app(), "tune", [*options, "--db", str(database)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert line.startswith(f"failed mine.one: error: {message.removeprefix('mine.one: ')}")
    assert line.endswith("(2 problems)")


def test_a_fault_that_a_library_raises_anew_is_told_with_the_line_of_its_cause(tmp_path: Path) -> None:
    # as Triton's interpreter does of what a kernel raises
    (tmp_path / "wrapping.py").write_text(
        "def anew(function, *given):\n"
        "    try:\n        function(*given)\n"
        "    except Exception as fault:\n        raise RuntimeError('anew') from fault\n"
    )
    body = PYTHON.replace("return run", "return __import__('functools').partial(anew, run)").replace(
        "torch.mul(arguments[0], arguments[0], out=outputs[0])", "raise ValueError('no power of 2')"
    )
    found = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from wrapping import anew; sys.path.pop(0)\n"
    _, implementation, file = stranger(tmp_path, found + body)
    told = checked(implementation)
    assert "raised RuntimeError: anew (" in told
    assert line_of(file, "raise ValueError") in told


FORGOTTEN = {
    "ignored": ("return arguments[0] ** 2", "", "run returned a tensor that is ignored", "say returns_outputs = True"),
    "none": ("torch.sin(arguments[0])", "\n    returns_outputs = True", "run returned None", "return the outputs, or"),
}


@pytest.mark.parametrize(("line", "attribute", "message", "remedy"), FORGOTTEN.values(), ids=list(FORGOTTEN))
def test_a_call_tells_of_a_run_that_leaves_its_outputs_unwritten(
    tmp_path: Path, line: str, attribute: str, message: str, remedy: str
) -> None:
    body = PYTHON.replace("torch.mul(arguments[0], arguments[0], out=outputs[0])", line)
    catalog, _, file = stranger(tmp_path, body.replace("\n    def ", f"{attribute}\n    def ", 1))
    own = Dispatcher(catalog)
    with own.using(square="mine.one"), pytest.raises(registry.RegistryError, match=message) as raised:
        own.call("square", torch.ones(8))
    assert line_of(file, "def bind") in str(raised.value)
    assert remedy in str(raised.value)


REMEDIES = {
    "grid": ("(1,)", "(0,)", "so that nothing runs, although the outputs are not empty", "use -(-size // block)"),
    "kernel": ("Launch(KERNEL", "Launch(print", "the kernel is a builtin_function_or_method", "expected CppKernel("),
    "argument": ('"x"', '"xs"', "unknown argument 'xs' of kernel square", "did you mean x?"),
}


@pytest.mark.parametrize(("right", "slip", "message", "remedy"), REMEDIES.values(), ids=list(REMEDIES))
def test_the_warning_of_a_call_that_puts_an_implementation_aside_has_the_remedy(
    tmp_path: Path, right: str, slip: str, message: str, remedy: str
) -> None:
    catalog, _, file = stranger(tmp_path, CPP.replace(right, slip) + PREFERRED)
    own, x = Dispatcher(catalog, database=str(tmp_path / "tuning.db")), torch.randn(1000)
    with pytest.warns(DispatchWarning, match=rf"{re.escape(message)}.* \(.*{re.escape(remedy)}.*\)$") as warned:
        torch.testing.assert_close(own.call("square", x), x * x)
    (warning,) = warned
    assert line_of(file, "return Launch") in str(warning.message)
    assert "\n" not in str(warning.message)


RUNS = {
    "none": (
        "return run",
        "",
        "bind() returned None, expected a function of (outputs, arguments, scratch)",
        "def bind",
    ),
    "text": ("return run", "return 'run'", "bind() returned 'run', expected a function of (outputs", "def bind"),
    "few": ("arguments, scratch)", "arguments)", "bind() returned run(outputs, arguments), expected a fun", "def run"),
    "many": ("scratch)", "scratch, stream)", "returned run(outputs, arguments, scratch, stream), expec", "def run"),
    "named": ("scratch)", "scratch, *, stream)", "returned run(outputs, arguments, scratch, *, stream)", "def run"),
}


@pytest.mark.parametrize(("right", "slip", "message", "place"), RUNS.values(), ids=list(RUNS))
def test_a_bind_that_returns_no_run_is_told_with_its_line(
    tmp_path: Path, right: str, slip: str, message: str, place: str
) -> None:
    catalog, implementation, file = stranger(tmp_path, PYTHON.replace(right, slip))
    told = checked(implementation)
    assert message in told
    assert f"{line_of(file, place)}) (8 problems)" in told
    own, x = Dispatcher(catalog, database=str(tmp_path / "tuning.db")), torch.randn(1000)
    with pytest.warns(DispatchWarning, match=re.escape(message)) as warned:
        torch.testing.assert_close(own.call("square", x), x * x)
    assert line_of(file, place) in str(warned[0].message)


@pytest.mark.parametrize("parameters", ["*given", "outputs, arguments, scratch=()", "outputs, arguments, *scratch"])
def test_a_run_may_have_any_parameters_that_take_three_values(tmp_path: Path, parameters: str) -> None:
    body = PYTHON.replace("outputs, arguments, scratch", parameters)
    body = (
        body.replace("torch.mul", "outputs, arguments = given[:2]\n            torch.mul") if "given" in body else body
    )
    _, implementation, _ = stranger(tmp_path, body)
    assert check_implementation(implementation, SQUARE, problems=[PROBLEM], device="cpu").ok


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[arguments[0] ** 2]", "y is a list, expected a plain torch.Tensor"),
        ("3.0", "y is a float, expected a plain torch.Tensor"),
        ("arguments[0][1:] ** 2", "y has shape (999,), expected (1000,)"),
    ],
)
def test_outputs_of_another_form_are_one_fault(tmp_path: Path, returned: str, message: str) -> None:
    body = PYTHON.replace("torch.mul(arguments[0], arguments[0], out=outputs[0])", f"return {returned}")
    _, implementation, _ = stranger(tmp_path, body.replace("\n    def ", "\n    returns_outputs = True\n    def ", 1))
    told = checked(implementation)
    assert message in told
    assert told.count("failed: ") == 1


OPERATION = """
import registry
from dataclasses import replace
from registry.contracts import SQUARE

def posed(arguments):
    return {"n": arguments.tensor("x").shape[1], "dtype": "float32"}

def with_attribute(arguments):
    return {"n": arguments.tensor("x").numel, "dtype": "float32"}

COLUMN = replace(SQUARE, name="kernels::column", schema="kernels::column(Tensor x) -> Tensor y", problem=posed)
SCALED = replace(
    SQUARE, name="kernels::scaled", schema="kernels::scaled(Tensor x, int times) -> Tensor y", problem=with_attribute,
    reference=lambda x, times: x * times, backward=None, inputs=lambda *given: (*SQUARE.inputs(*given), 2),
)

LISTED = replace(
    SQUARE, name="kernels::listed", schema="kernels::listed(Tensor[] xs) -> Tensor y", backward=None,
    reference=lambda xs: xs[0], inputs=lambda *given: (SQUARE.inputs(*given),), independent=frozenset(),
    problem=lambda arguments: {"n": arguments.tensors_of("xs")[9], "dtype": "float32"},
)

@registry.defines
def ops():
    return [COLUMN, SCALED, LISTED]
"""


def test_a_call_that_an_op_cannot_pose_is_told_with_op_line_and_arguments(tmp_path: Path) -> None:
    file, catalog = tmp_path / "kernels.py", Catalog()
    file.write_text(OPERATION)
    catalog.load_file(file)
    own = Dispatcher(catalog, database=str(tmp_path / "tuning.db"))
    with pytest.raises(
        registry.InvalidArgumentError, match=r"column: problem\(\) raised IndexError: tuple ind"
    ) as raised:
        own.call("kernels::column", torch.ones(2))
    assert line_of(file, "shape[1]") in raised.value.message
    assert raised.value.hint == "the arguments are x: [2]: does the op accept them?"
    with pytest.raises(registry.InvalidArgumentError, match="IndexError") as raised:
        own.call("kernels::listed", [torch.ones(2), torch.ones(3, 4)])
    assert raised.value.hint == "the arguments are xs: [[2], [3, 4]]: does the op accept them?"
    for number in (2**70, -(2**63) - 1):
        with pytest.raises(registry.InvalidArgumentError, match=f"scaled: times is {number}, expected an int of 64"):
            own.call("kernels::scaled", torch.ones(2), number)
    assert own.call("kernels::scaled", torch.ones(2), 2**62).tolist() == [2.0**62] * 2


@pytest.mark.skipif(bool(nvrtc.missing()), reason="no NVRTC")
def test_what_nvrtc_tells_ends_without_a_null() -> None:
    source = nvrtc.Source("", "k", {}, "sm_90")
    assert str(nvrtc._refused(source, "compilation log:\nk.cu(1): error: no\n\0")).endswith("k.cu(1): error: no")


def test_an_op_that_nobody_implements_says_how_to_add_an_implementation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, shapes = tmp_path / "kernels.py", tmp_path / "shapes.yaml"
    file.write_text(
        "import registry\nfrom dataclasses import replace\nfrom registry.contracts import SQUARE\n"
        "schema = SQUARE.schema.replace('square', 'kernels::cube')\n"
        "@registry.defines\ndef ops():\n    return [replace(SQUARE, name='kernels::cube', schema=schema)]\n"
    )
    shapes.write_text('"kernels::cube":\n  - {n: 1000, dtype: float32}\n')
    where = where_defined(SQUARE.reference)
    assert "contracts/elementwise.py:" in where
    reason = f"nobody implements kernels::cube ({where}): give an Implementation to registry.register()"
    dry = ["--shapes", str(shapes), "--device", "cpu", "--dry-run", "--plugin", str(file)]
    assert app.run(new_tune_app(), "tune", dry) == 0
    assert f"skipped: {reason}" in capsys.readouterr().out
    asked = ["explain", "kernels::cube", "n=1000", "dtype=float32", "--device", "cpu", "--plugin", str(file)]
    assert app.run(new_registry_app(), "registry", asked) == 0
    assert f"reference: {reason}" in capsys.readouterr().out
    assert (
        app.run(new_registry_app(), "registry", ["compile", "--arch", "sm_90", "--op", "kernels::cube", *asked[-2:]])
        == 2
    )
    assert reason in capsys.readouterr().err


def test_a_result_that_is_an_output_may_be_returned(tmp_path: Path) -> None:
    body = PYTHON.replace("torch.mul(", "return torch.mul(")
    _, implementation, _ = stranger(tmp_path, body)
    assert check_implementation(implementation, SQUARE, problems=[PROBLEM], device="cpu").ok


TRITON = (
    """\
import registry, triton, triton.language as tl
from registry import Launch, Space
from registry.backends import TritonImplementation

@triton.jit
def squared(y, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value * value, mask=at < n)

class Mine(TritonImplementation):
    op, name = "square", "mine.one"
    def launch(self, problem, config, device):
        return Launch(squared, (-(-problem.n // 64),), ("y", "x", problem.n), {"BLOCK": 64}, {"num_warps": 4})
"""
    + TAIL
)
CHECK = """\
import sys
from registry.contracts import SQUARE
from registry.discovery.catalog import Catalog
from registry.errors import CheckError
from registry.testing import check_implementation

for file in sys.argv[1:]:
    catalog = Catalog()
    catalog.load_file(file)
    try:
        mine = catalog.implementation("square", "mine.one")
        check_implementation(mine, SQUARE, problems=[{"n": 1000, "dtype": "float32"}], device="cpu")
    except CheckError as fault:
        print(fault)
    print("-----")
"""
TRITON_SLIPS = [
    ('"num_warps"', '"num_warp"', ["unknown Triton option 'num_warp'", "did you mean num_warps"]),
    ("(-(-problem.n // 64),)", "(problem.n // 4096,)", ["the grid is (0,), so that nothing runs"]),
    ("(-(-problem.n // 64),)", "lambda meta: (16,)", ["launch() computes it from problem and config"]),
    ('("y", "x", problem.n)', '("y", "z", problem.n)', ["unknown argument 'z' of kernel squared"]),
    ('("y", "x", problem.n)', '("y", "x")', ["takes 3 arguments (y, x, n) beside its constants"]),
    ('{"BLOCK": 64}', '{"BLOK": 64}', ["has no parameter BLOK", "did you mean BLOCK?"]),
    ('{"BLOCK": 64}', "{}", ["the launch gives no constant BLOCK", "expected constants={'BLOCK': ...}"]),
    ('{"num_warps": 4}', '{"num_warps": 3}', ["num_warps is 3", "expected a power of two"]),
]


def test_a_slip_in_a_triton_launch_is_told_under_the_interpreter(tmp_path: Path) -> None:
    files = [tmp_path / f"kernels{number}.py" for number in range(len(TRITON_SLIPS))]
    for file, (right, slip, _) in zip(files, TRITON_SLIPS, strict=True):
        file.write_text(TRITON.replace(right, slip))
    done = fresh.run("-c", CHECK, *files, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    for told, file, (_, _, messages) in zip(done.stdout.split("-----")[:-1], files, TRITON_SLIPS, strict=True):
        assert all(message in told for message in messages), told
        assert line_of(file, "return Launch") in told
