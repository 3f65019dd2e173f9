"""A ready Python callable becomes an implementation in one line."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry import Device, Implementation, Problem, implementation_of
from registry.author_code import shown
from registry.backends import library_function
from registry.contracts import RMS_NORM, SOFTMAX, SQUARE
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warning import DispatchWarning
from registry.errors import CheckError, InvalidDefinitionError, UnknownNameError, UnsupportedError
from registry.testing import check_implementation
from registry.tuner.planning.problems import plan
from registry.tuner.workers.preloading import preloads_of

close = torch.testing.assert_close
CPU = Device.of("cpu")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.nn.functional.rms_norm(x.to(wide), x.shape[-1:], weight.to(wide), eps).to(x.dtype)


def square_into(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.mul(x, x, out=y)


def problem() -> Problem:
    return SQUARE.problem_of({"n": 100, "dtype": "float32"})


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher(Catalog(entry_points=()))


@pytest.mark.parametrize(
    ("op", "made"),
    [
        (RMS_NORM, implementation_of("rms_norm", "mine.norm", rms_norm, any_size=True)),
        (SQUARE, implementation_of("square", "mine.into", square_into, into=True)),
        (SQUARE, implementation_of("square", "mine.torch", "torch:square", library="torch", any_size=True)),
        (SOFTMAX, implementation_of("softmax", "mine.partial", functools.partial(torch.nn.functional.softmax))),
    ],
    ids=lambda value: value.name,
)
@pytest.mark.few(2)
def test_it_passes_the_check_and_answers_calls(op: registry.Op, made: Implementation, dispatcher: Dispatcher) -> None:
    if op is not SOFTMAX:  # torch.softmax in half precision is checked as torch.native
        # each dtype, several sizes
        check_implementation(made, op, problems=[{**dims} for dims in op.examples[2::4]], device="cpu")
    dispatcher.register(made)
    values = op.inputs(op.problem_of(op.examples[0]), op.kinds[0], torch.Generator().manual_seed(0))
    with dispatcher.using(**{op.name: made.name}):
        close(dispatcher.call(op.name, *values), op.reference(*op.bind(values, {})))


def test_a_function_of_any_size_is_bound_once(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    made, bound = implementation_of("rms_norm", "mine.norm", rms_norm, any_size=True, preference=1.0), []
    bind = made.bind
    monkeypatch.setattr(made, "bind", lambda *given: bound.append(given) or bind(*given))
    dispatcher.register(made)
    for rows in (3, 5, 7, 11):
        x, weight = torch.randn(rows, 8), torch.randn(8)
        close(dispatcher.call("rms_norm", x, weight), rms_norm(x, weight, 1e-6))
    assert dispatcher.explain("rms_norm", x, weight).implementation == "mine.norm"
    assert len(bound) == 1


def test_what_is_given_is_told_of_the_implementation() -> None:
    made = implementation_of(
        "square", "mine.one", torch.square, unsupported=lambda problem, device: [f"n={problem.n}"],
        device_types="cpu", deterministic=False, capturable=False, preference=3.0,
    )  # fmt: skip
    assert list(made.unsupported(problem(), CPU)) == ["n=100"]
    assert (made.device_types, made.deterministic, made.capturable) == (frozenset({"cpu"}), False, False)
    assert made.preference(problem(), CPU) == 3.0
    assert repr(made) == "<torch:square as mine.one of square>"


def test_a_missing_library_is_a_reason_and_no_import_error(dispatcher: Dispatcher) -> None:
    made = implementation_of("square", "absent.square", "absent_kernels.ops:square", library="absent-kernels")
    dispatcher.register(made)
    assert list(made.unsupported(problem(), CPU)) == ["absent-kernels is not installed (pip install absent-kernels)"]
    assert len(made.fingerprint()) == 64
    x = torch.randn(5)
    close(dispatcher.call("square", x), x * x)
    assert "absent-kernels is not installed" in str(dispatcher.explain("square", x))
    nameless = implementation_of("square", "absent.other", "absent_kernels.ops:square")
    assert list(nameless.unsupported(problem(), CPU)) == ["there is no module absent_kernels"]
    assert len(nameless.fingerprint()) == 64


def test_what_cannot_be_imported_or_is_not_there_is_named(
    dispatcher: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_kernels.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    dispatcher.register(implementation_of("square", "broken.one", "broken_kernels:square"))
    dispatcher.register(implementation_of("square", "torch.misspelt", "torch:sqare"))
    with dispatcher.using(square="broken.one"), pytest.raises(UnsupportedError, match="No module named 'nowhere_at_al"):
        dispatcher.call("square", torch.ones(3))
    with dispatcher.using(square="torch.misspelt"), pytest.raises(UnknownNameError, match=r"'sqare'\n.*square"):
        dispatcher.call("square", torch.ones(3))


@pytest.mark.parametrize("given", [None, 3, "square", "a module:f"])
def test_what_is_no_callable_is_refused(given: Any) -> None:
    with pytest.raises(InvalidDefinitionError, match=r"expected a callable or \"module:function\""):
        implementation_of("square", "mine.one", given)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes and imports a module named own_kernels."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> Any:
        sys.modules.pop("own_kernels", None)
        (tmp_path / "own_kernels.py").write_text(source)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return importlib.import_module("own_kernels")
        finally:
            sys.dont_write_bytecode = before

    yield write
    sys.modules.pop("own_kernels", None)


OWN = "import torch\ndef f(x):\n    return torch.square(x)\n"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_functions_own_module_counts_and_its_comments_do_not(module: Callable[[str], Any], as_text: bool) -> None:
    def fingerprint(source: str) -> str:
        found = module(source)
        return implementation_of("square", "mine.f", "own_kernels:f" if as_text else found.f).fingerprint()

    first = fingerprint(OWN)
    assert fingerprint(OWN + "# a comment\n") == first
    assert fingerprint(OWN.replace("torch.square(x)", "x * x")) != first


def test_the_librarys_version_counts_and_its_source_does_not(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"own-kernels": "1.0"}
    monkeypatch.setattr(library_function, "installed_version", versions.get)

    def fingerprint(source: str) -> str:
        return implementation_of("square", "mine.f", module(source).f, library="own-kernels").fingerprint()

    first = fingerprint(OWN)
    assert fingerprint(OWN.replace("torch.square(x)", "x * x")) == first
    versions["own-kernels"] = "1.1"
    assert fingerprint(OWN) != first


def test_a_wrapper_of_ones_own_counts_beside_the_library(module: Callable[[str], Any]) -> None:
    def fingerprint(source: str) -> str:
        return implementation_of("square", "mine.f", module(source).f, library="numpy").fingerprint()

    assert fingerprint(OWN) != fingerprint(OWN.replace("torch.square(x)", "x * x"))


def test_a_modules_distribution_is_found_by_its_files() -> None:
    assert library_function._is_part_of("yaml.nodes", "PyYAML")
    assert library_function._is_part_of("optuna_dashboard", "optuna-dashboard")
    assert not library_function._is_part_of("yaml", "numpy")


def test_one_name_holds_one_function(dispatcher: Dispatcher) -> None:
    dispatcher.register(implementation_of("square", "mine.f", torch.square))
    dispatcher.register(implementation_of("square", "mine.f", torch.square, any_size=True))
    with pytest.raises(InvalidDefinitionError, match=r"'mine.f' is taken by <torch:square as mine.f of square>"):
        dispatcher.register(implementation_of("square", "mine.f", torch.abs))


def test_a_hook_returns_it(tmp_path: Path) -> None:
    file = tmp_path / "acme.py"
    file.write_text(
        "import registry\n"
        "@registry.implements('square')\n"
        "def squares(): return [registry.implementation_of('square', 'acme.torch', 'torch:square', library='torch')]\n"
    )
    catalog = Catalog(entry_points=())
    catalog.load_file(file)
    assert [one.name for one in catalog.implementations("square")] == ["acme.torch"]


@pytest.mark.parametrize("preloads", [["colorsys"], "colorsys"])
def test_what_its_library_imports_for_seconds_is_wanted_before_processes_are_forked(preloads: Any) -> None:
    catalog = Catalog(entry_points=())
    catalog.register(implementation_of("square", "mine.torch", "torch:square", preloads=preloads))
    plans = plan([problem()], catalog, CPU, ["mine.torch"])
    assert preloads_of(plans) == [("colorsys",)]


def raising(x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("division by zero")


def refusing(problem: Problem, device: Device) -> Iterator[str]:
    yield f"{problem.rows} rows"


def line_of(function: Callable[..., Any], further: int) -> str:
    return f"({shown(__file__, function.__code__.co_firstlineno + further)})"


def test_a_function_that_raises_is_told_with_its_line_by_the_check_and_by_a_call(dispatcher: Dispatcher) -> None:
    mine = implementation_of("square", "mine.f", raising, any_size=True, preference=99.0)
    with pytest.raises(CheckError) as raised:
        check_implementation(mine, SQUARE, device="cpu", problems=[problem()])
    failures = [line for line in str(raised.value).splitlines() if "failed: " in line]
    assert failures
    assert all(line_of(raising, 1) in line for line in failures)
    dispatcher.register(mine)
    x = torch.randn(100)
    with pytest.warns(DispatchWarning, match=re.escape(f"division by zero {line_of(raising, 1)}")):
        close(dispatcher.call("square", x), x * x)


def test_limits_that_raise_are_told_with_their_own_line(dispatcher: Dispatcher) -> None:
    """Not with that of the function that they limit."""
    dispatcher.register(implementation_of("square", "mine.f", torch.square, unsupported=refusing, preference=99.0))
    told = f"no dimension 'rows'; it has ['n', 'dtype'] {line_of(refusing, 1)}"
    with pytest.warns(DispatchWarning, match=re.escape(told)):
        dispatcher.call("square", torch.randn(100))


def test_a_misspelt_function_of_a_large_module_is_told_in_some_lines() -> None:
    with pytest.raises(UnknownNameError) as raised:
        library_function._imported("mine.f", "torch:zzqqzzqqzz")
    assert len(str(raised.value)) < 3000
    assert "_" not in {name[0] for name in str(raised.value).partition("known: ")[2].split(", ")}
    assert re.search(r" and \d+ more$", str(raised.value))


class OtherBind(Implementation):
    op, name = "square", "mine.bind"
    device_types = frozenset({"cpu"})

    def preference(self, problem: Problem, device: Device) -> float:
        return 99.0

    def bind(self, problem: Problem, config: Any, device: Device) -> Any:  # type: ignore[override]
        return None


def test_a_bind_of_other_parameters_is_told_with_its_line(dispatcher: Dispatcher) -> None:
    dispatcher.register(OtherBind())
    with pytest.warns(DispatchWarning, match=re.escape(f"but 5 were given {line_of(OtherBind.bind, 0)}")):
        dispatcher.call("square", torch.randn(100))
