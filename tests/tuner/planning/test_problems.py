"""What takes part in tuning one problem: a fault in an implementation's own answers takes only itself out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import implementation_of
from registry.artifact import Built
from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import InvalidArgumentError, PluginError
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config
from registry.tuner.planning.problems import check_shared, plan

CPU = Device.of("cpu")
PROBLEM = Problem("square", {"n": 1000, "dtype": "float32"})


class Anything(Implementation):
    """Runs nothing: planning only asks."""

    op = "square"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise NotImplementedError


def raising(*_: Any) -> Any:
    raise LookupError("no such table")


@pytest.mark.parametrize("method", ["unsupported", "space", "default", "preference"])
@pytest.mark.few(2)
def test_an_implementation_that_raises_when_it_is_asked_is_out_with_the_reason(catalog: Catalog, method: str) -> None:
    class Faulty(Anything):
        name = "test.faulty"

    setattr(Faulty, method, raising)
    catalog.register(Faulty())
    (planned,) = plan([PROBLEM], catalog, CPU)
    (choice,) = [choice for choice in planned.choices if choice.implementation.name == "test.faulty"]
    (reason,) = choice.unsupported
    assert reason.startswith(f"{method}() raised LookupError: no such table (")
    assert "test_problems.py:" in reason
    assert "test.faulty" not in [candidate.implementation.name for candidate in planned.defaults()]
    assert planned.defaults()


@pytest.mark.parametrize("answer", [None, "high", float("nan")], ids=str)
@pytest.mark.few(1)
def test_a_preference_that_is_no_finite_number_takes_its_implementation_out(catalog: Catalog, answer: Any) -> None:
    class Faulty(Anything):
        name = "test.faulty"
        preference: Callable[..., Any] = lambda *_: answer

    catalog.register(Faulty())
    (planned,) = plan([PROBLEM], catalog, CPU)
    (choice,) = [choice for choice in planned.choices if choice.implementation.name == "test.faulty"]
    assert "preference() returned" in choice.unsupported[0]
    assert planned.defaults()


def test_defaults_come_by_preference(catalog: Catalog) -> None:
    def preferring(number: float) -> type[Implementation]:
        class Preferred(Anything):
            name = f"test.p{number:g}"
            preference: Callable[..., float] = lambda *_: number

        return Preferred

    for number in (900.0, 1000.0):
        catalog.register(preferring(number)())
    (planned,) = plan([PROBLEM], catalog, CPU)
    assert [candidate.implementation.name for candidate in planned.defaults()][:2] == ["test.p1000", "test.p900"]


def test_what_was_added_by_a_call_is_not_tuned_in_other_processes(catalog: Catalog) -> None:
    class Added(Anything):
        name = "test.added"

    catalog.register(Added())
    with pytest.raises(PluginError, match=r"tune: test.added of square: added in this process alone.*\n.*load_file"):
        check_shared(plan([PROBLEM], catalog, CPU), catalog)
    others = [one.name for one in catalog.implementations("square") if one.name != "test.added"]
    check_shared(plan([PROBLEM], catalog, CPU, others), catalog)
    catalog.define(replace(SQUARE, name="test::square", schema="test::square(Tensor x) -> Tensor y", backward=None))
    catalog.register(implementation_of("test::square", "test.torch", "torch:square"))
    problem = catalog.op("test::square").problem_of(PROBLEM.dims)
    with pytest.raises(PluginError, match="tune: test::square: added in this process alone"):
        check_shared(plan([problem], catalog, CPU), catalog)


def test_what_a_file_adds_by_calls_is_tuned(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(
        "import registry\n"
        "registry.register(registry.implementation_of('square', 'test.torch', 'torch:square', library='torch'))\n"
    )
    catalog = Catalog(entry_points=())
    catalog.load_file(file)
    planned = plan([PROBLEM], catalog, CPU)
    assert [choice.implementation.name for choice in planned[0].supported] == ["test.torch"]
    check_shared(planned, catalog)


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, 2**63 - 1])
@pytest.mark.few(1)
def test_a_problem_of_any_size_is_planned_or_skipped_with_the_reason(size: int) -> None:
    catalog = Catalog()
    for name, op in catalog.ops().items():
        plain = {"dtype": "bfloat16", "group_size": 128, "bits": 4, **{key: of[0] for key, of in op.choices.items()}}
        names = [dim for dim in op.static | op.dynamic if dim not in plain]
        for large in ({*names}, *({one} for one in names)):
            sizes = {dim: size if dim in large else 256 for dim in names}
            try:
                problem = op.problem_of({**{dim: plain[dim] for dim in (op.static | op.dynamic) - {*names}}, **sizes})
            except InvalidArgumentError:
                continue  # the op itself refuses it
            (planned,) = plan([problem], catalog, CPU)
            assert "no inputs can be made of it: " in planned.skipped or "needs " in planned.skipped, name
