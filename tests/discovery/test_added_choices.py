"""Values that an op got later are run by those implementations alone that name them: others cannot refuse them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from registry import Device, Implementation, Problem
from registry.arguments.traits import FamilyTraits
from registry.artifact import Built
from registry.contracts import ATTENTION_DECODE as OP
from registry.contracts import SQUARE
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import UnsupportedError
from registry.implementation import Run
from registry.space import Config

CPU = Device.of("cpu")
DIMS: Mapping[str, Any] = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 24, "head_dim": 16, "page": False, "span": False,
    "softcap": False, "dtype": "float32",
}  # fmt: skip
TOLD = "it does not say that it takes kv_dtype=int8, which attention_decode got later"


class Decode(Implementation):
    """The reference, which counts its runs; it would run any problem."""

    op = OP.name
    device_types = frozenset({"cpu"})
    returns_outputs = True
    any_size = True

    def __init__(self, name: str, added: Mapping[str, tuple[str, ...]], preference: float) -> None:
        self.name, self.added, self.runs, self._preference = name, added, 0, preference

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Any, values: tuple[Any, ...], _scratch: Any) -> Any:
            self.runs += 1
            return OP.reference(*values)

        return run


def drawn(kv_dtype: str, kv_len: int = 24) -> tuple[Any, ...]:
    problem = OP.problem_of({**DIMS, "kv_dtype": kv_dtype, "kv_len": kv_len})
    return OP.draw(problem, "normal", torch.Generator().manual_seed(0))


def test_what_does_not_name_a_later_value_never_runs_it_at_any_size() -> None:
    old, new = Decode("a.old", {}, 2.0), Decode("a.new", {"kv_dtype": ("int8",)}, 1.0)
    dispatcher = Dispatcher(Catalog(entry_points=()))
    for one in (old, new):
        dispatcher.register(one)
    for kv_len in (24, 31, 7, 400):
        dispatcher.call(OP.name, *drawn("int8", kv_len))
        dispatcher.call(OP.name, *drawn("float8_e4m3fn", kv_len))
    assert (old.runs, new.runs) == (4, 4)
    explained = dispatcher.explain(OP.name, *drawn("int8"))
    assert explained.implementation == "a.new"
    assert TOLD in str(explained)
    with dispatcher.using(attention_decode="a.old"), pytest.raises(UnsupportedError, match=TOLD):
        dispatcher.call(OP.name, *drawn("int8"))


@pytest.mark.parametrize("added", [{}, {"kv_dtype": ("float8_e4m3fn",)}, {"dtype": ("int8",)}])
def test_the_value_itself_must_be_named(added: Mapping[str, tuple[str, ...]]) -> None:
    values = drawn("int8")
    posed = OP.problem_of({**DIMS, "kv_dtype": "int8"}), OP.pose(OP.arguments(values))
    family = OP.posing_in_family(FamilyTraits, OP.told(OP.arguments(values)))(OP.arguments(values))
    for problem in (*posed, family, posed[0].misaligned(), pickle.loads(pickle.dumps(posed[0]))):
        assert refusals(Decode("a.one", added, 1.0), problem, CPU) == (TOLD,)
        assert refusals(Decode("a.one", {"kv_dtype": ("int8",)}, 1.0), problem, CPU) == ()
    for kv_dtype in ("auto", "float8_e4m3fn"):
        assert refusals(Decode("a.one", added, 1.0), OP.problem_of({**DIMS, "kv_dtype": kv_dtype}), CPU) == ()


def test_an_op_without_later_values_tells_of_none() -> None:
    arguments = SQUARE.arguments((torch.ones(3),))
    assert SQUARE.told(arguments) is None
    assert dict(SQUARE.pose(arguments).traits.added) == {}
