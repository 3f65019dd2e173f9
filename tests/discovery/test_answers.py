"""What an implementation says of its own tensors: of another form, or of a name that is taken, it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from registry import Config, Device, Implementation, InvalidDefinitionError, Launch, Problem, TensorSpec
from registry.artifact import Built
from registry.backends.cpp import CppImplementation, CppKernel
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import WrongAnswerError
from registry.implementation import Run

SPEC = TensorSpec.contiguous((2,), torch.float32)


class Own(Implementation):
    """rms_norm with tensors of its own, as the test says."""

    op, name = "rms_norm", "a.own"
    device_types = frozenset({"cpu"})
    weights: ClassVar[Any] = {}
    temporary: ClassVar[Any] = {}
    made: ClassVar[Any] = None

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return self.weights  # type: ignore[no-any-return]

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        return self.made  # type: ignore[no-any-return]

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return self.temporary  # type: ignore[no-any-return]

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda outputs, arguments, scratch: None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "scratch: tensor": ({"temporary": {"s": torch.ones(2)}}, "a mapping of names to specs, e.g. "),
    "scratch: list": ({"temporary": [SPEC]}, "a mapping of names to specs, e.g. "),
    "scratch: nothing": ({"temporary": None}, "scratch() returned None, expected a mapping"),
    "scratch: argument": ({"temporary": {"x": SPEC}}, "scratch() names a tensor 'x', as an argument of rms_norm is"),
    "scratch: output": ({"temporary": {"y": SPEC}}, "scratch() names a tensor 'y', as an output of rms_norm is"),
    "prepared: argument": (
        {"weights": {"weight": ("weight",)}, "made": torch.ones(2)},
        "prepared() names a tensor 'weight', as an argument of rms_norm is named: take another name",
    ),
    "prepared: scratch": (
        {"weights": {"own": ("weight",)}, "made": torch.ones(2), "temporary": {"own": SPEC}},
        "scratch() names a tensor 'own', as a prepared tensor of rms_norm is",
    ),
    "prepared: text": ({"weights": {"own": "weight"}}, 'a mapping of names to tuples of arguments, e.g. {"packed": ('),
    "prepared: nothing": ({"weights": None}, "prepared() returned None, expected a mapping of names to tuples"),
    "prepare: nothing": ({"weights": {"own": ("weight",)}}, "prepare('own') returned None, expected a tensor"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=list(WRONG))
def test_tensors_of_its_own_that_cannot_be_are_told_with_their_line(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    catalog = Catalog(entry_points=())
    catalog.register(type("Wrong", (Own,), given)())
    dispatcher = Dispatcher(catalog, database=str(tmp_path / "tuning.db"))
    with dispatcher.using(rms_norm="a.own"), pytest.raises(WrongAnswerError) as raised:
        dispatcher.call("rms_norm", torch.ones(3, 2), torch.ones(2))
    assert message in str(raised.value)
    assert f"{Path(__file__).name}:" in str(raised.value)


@pytest.mark.parametrize("name", ["any_size", "deterministic", "returns_outputs", "capturable", "transfers", "mixed"])
def test_what_is_true_or_false_does_not_depend_on_who_asks(name: str) -> None:
    asked = list[Any]()
    kind = type("Wrong", (Own,), {name: property(lambda own: bool(asked.append(own) or len(asked) % 2))})
    with pytest.raises(InvalidDefinitionError, match=f"Wrong.{name} is a property, expected True or False"):
        Catalog(entry_points=()).register(kind())
    with pytest.raises(InvalidDefinitionError, match=f"Wrong.{name} is 1, expected True or False"):
        Catalog(entry_points=()).register(type("Wrong", (Own,), {name: 1})())
    assert not asked


def test_what_is_true_or_false_may_be_an_objects_own() -> None:
    own = type("Right", (Own,), {})()
    own.any_size = True  # type: ignore[attr-defined]
    catalog = Catalog(entry_points=())
    catalog.register(own)
    assert catalog.implementation("rms_norm", "a.own").any_size


def test_what_is_true_or_false_may_have_a_slot() -> None:
    @dataclass(frozen=True, slots=True)
    class Right(Own):
        deterministic: bool = False
        any_size: Any = True

    catalog = Catalog(entry_points=())
    catalog.register(Right())
    assert not catalog.implementation("rms_norm", "a.own").deterministic
    with pytest.raises(InvalidDefinitionError, match=r"Right.any_size is 1, expected True or False"):
        Catalog(entry_points=()).register(Right(any_size=1))


def test_what_binds_launches_for_each_size_serves_no_other_by_one_run() -> None:
    class AnySize(CppImplementation):
        op, name, any_size = "square", "a.any_size", True

        def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
            return Launch(CppKernel("void square(float* y, const float* x, long n) {}", "square"), (1,), ("y", "x", 3))

    with pytest.raises(
        InvalidDefinitionError, match=r"any_size is True, but its run has .* of one size: leave any_size"
    ):
        Catalog(entry_points=()).register(AnySize())


def test_device_types_that_are_a_text_are_refused() -> None:
    kind = type("Wrong", (Own,), {"device_types": "cpu"})
    with pytest.raises(InvalidDefinitionError, match=r"device_types is a text, expected a set, .'cpu'."):
        Catalog(entry_points=()).register(kind())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu"}, "has 'gpu', which is no device type; there are 'cpu' and 'cuda'.*; did you mean cuda"),
        ({"cpu", "cuda:0"}, "has 'cuda:0', which is no device type; .*; did you mean cuda"),
        ({"cudaa"}, "has 'cudaa', which is no device type; .*; did you mean cuda"),
        (set(), r"is set\(\), so that it never runs; there are 'cpu' and 'cuda'"),
        ({"mps"}, "is {'mps'}, so that it never runs"),
        (None, "is None, expected a set"),
        ({1}, r"is \{1\}, expected a set"),
    ],
)
def test_device_types_that_do_not_exist_are_told_with_those_that_do(given: Any, told: str) -> None:
    kind = type("Wrong", (Own,), {"device_types": given})
    with pytest.raises(InvalidDefinitionError, match=f"Wrong.device_types {told}"):
        Catalog(entry_points=()).register(kind())


def test_device_types_may_name_one_that_torch_has_beside_those_of_ops() -> None:
    catalog = Catalog(entry_points=())
    catalog.register(type("Own", (Own,), {"device_types": ["cpu", "xpu"]})())
    assert [one.name for one in catalog.implementations("rms_norm")] == ["a.own"]
