"""An op and its backward op must fit, whichever is registered first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.contract import Backward, Op
from registry.contracts import BOX, SQUARE
from registry.discovery.catalog import Catalog
from registry.discovery.plugin import PluginWarning
from registry.errors import InvalidDefinitionError, PluginError

FORWARD = "acme::f(Tensor x, Tensor? weight, int dim=-1) -> (Tensor y, Tensor inverse)"
GOOD = "acme::f_backward(Tensor grad_y, Tensor x, Tensor inverse, int dim=-1) -> Tensor grad_x"


def op(schema: str, backward: Backward | None = None) -> Op:
    given: dict[str, Any] = {"name": schema.partition("(")[0], "schema": schema, "backward": backward}
    return replace(SQUARE, **given, reference=lambda *values: values[0], examples=())


def forward(saved: tuple[str, ...] = ("x", "inverse")) -> Op:
    return op(FORWARD, Backward("acme::f_backward", saved))


def test_the_ops_in_the_box_fit() -> None:
    known = Catalog(entry_points=()).ops()
    for one in BOX:
        if one.backward is not None and one.backward.op is not None:
            assert one.backward.op in known


def test_a_pair_that_fits_is_accepted_in_either_order() -> None:
    for pair in itertools.permutations((forward(), op(GOOD))):
        catalog = Catalog(entry_points=())
        for one in pair:
            catalog.define(one)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("(Tensor grad_y, Tensor x, int dim) -> Tensor grad_x", "does not take inverse, which is saved"),
        ("(Tensor grad_y, Tensor x, Tensor inverse, Tensor weight) -> Tensor grad_x", "takes weight, which is neither"),
        ("(Tensor grad_y, Tensor x, Tensor inverse, float dim) -> Tensor grad_x", "takes dim as float, but acme::f as"),
        ("(Tensor x, Tensor inverse) -> Tensor grad_x", "takes no gradient, expected grad_inverse, grad_y"),
        ("(Tensor grad_y, Tensor x, Tensor inverse) -> Tensor dx", "returns dx, the gradient of no input"),
        ("(Tensor(a!) grad_y, Tensor x, Tensor inverse) -> Tensor grad_x", "writes to its arguments"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_in_either_order(schema: str, message: str) -> None:
    for first, second in itertools.permutations((forward(), op(f"acme::f_backward{schema}"))):
        catalog = Catalog(entry_points=())
        catalog.define(first)
        with pytest.raises(InvalidDefinitionError, match=f"'acme::f': its backward op acme::f_backward.*{message}"):
            catalog.define(second)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (forward(saved=("z",)), "its backward saves z\n  expected some of"),
        (forward(saved=("dim",)), "its backward saves dim"),
        (forward(saved=("inverted",)), "its backward saves inverted\n  did you mean inverse"),
        (op(FORWARD, Backward.reference(("invers",))), "differentiable in its backward are invers\n.*mean inverse"),
        (op(FORWARD, Backward("acme::f_backward", (), ())), r"no output is differentiable.*\n  write Backward.none"),
        (op(FORWARD, Backward("acme::h", (), by_reference=True)), r"\n.*write Backward.reference\(\)"),
        (op(FORWARD, Backward("acme::h", (), inline=True)), r"inline is for .*\n.*write Backward.reference\(inline"),
        (op("acme::g(Tensor(a!) x) -> Tensor y", Backward.reference()), "it writes to its arguments"),
        (op(FORWARD, Backward(None, ())), r"Backward\(op=None\) is for one output"),
        (op("acme::g(Tensor x) -> Tensor y", Backward(None, ("x",))), r"Backward\(op=None\) is for one output"),
        (op("acme::g(Tensor(a!) x) -> Tensor y", Backward("acme::h", ())), "it writes to its arguments"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(bad: Op, message: str) -> None:
    with pytest.raises(InvalidDefinitionError, match=message):
        Catalog(entry_points=()).define(bad)


@pytest.mark.parametrize(
    ("differentiable", "message"),
    [
        (("y", "inverse"), "does not take grad_inverse, which is diff"),
        (("inverse",), "takes grad_y, the gradient of an"),
    ],
)
def test_what_is_said_to_be_differentiable_is_what_the_backward_op_takes(
    differentiable: tuple[str, ...], message: str
) -> None:
    catalog = Catalog(entry_points=())
    catalog.define(op(FORWARD, Backward("acme::f_backward", ("x", "inverse"), differentiable)))
    with pytest.raises(InvalidDefinitionError, match=message):
        catalog.define(op(GOOD))


LOST = """
from dataclasses import replace
from pathlib import Path
from typing import Any
import registry
from registry.contracts import SQUARE
LOST = replace(
    SQUARE, name="lost::f", schema="lost::f(Tensor x) -> Tensor y", examples=(),
    backward=registry.Backward("square_backwards", ("x",)),
)
@registry.defines
def ops(): return [LOST]
"""


def test_a_backward_op_that_nobody_defines_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    catalog = Catalog(entry_points=())
    with pytest.raises(
        PluginError,
        match=r"its backward op 'square_backwards' is defined by nobody \(.*lost\.py:\d+\)\n.*square_backward",
    ):
        catalog.load_file(tmp_path / "lost.py")
    assert "lost::f" not in catalog.ops()


def test_an_op_is_not_proposed_as_its_own_backward_op(tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST.replace("square_backwards", "lost::g"))
    with pytest.raises(PluginError, match=r"\(.*lost\.py:\d+\)\n  define it .* or write Backward.reference\(\)"):
        Catalog(entry_points=()).load_file(tmp_path / "lost.py")


def test_an_installed_plugins_op_with_a_lost_backward_is_taken_out(site: Any) -> None:
    site.add("lost-kernels", {"lost": "registry_lost"}, registry_lost=LOST)
    catalog = Catalog(site.entry_points, {})
    with pytest.warns(
        PluginWarning, match=r"plugin 'lost' .*'square_backwards' is defined by nobody \(.*\)\n.*did you mean"
    ):
        assert "lost::f" not in catalog.ops()
