"""KERNEL_REGISTRY_CHECK=1: calls read the contents of their tensors before they run; without it none does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from registry.contract import Op, Tolerance
from registry.contracts import BOX
from registry.contracts.checks import check_values
from registry.contracts.families import rows_op
from registry.discovery.catalog import Catalog
from registry.dispatch.data_checks import checking
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators
from registry.errors import InvalidArgumentError, InvalidDefinitionError, OutOfRangeError

READ: list[Mapping[str, Any]] = []
"""The values of each check of ``test::root``."""


def _no_negative(values: Mapping[str, Any]) -> None:
    READ.append(values)
    x = values["x"]
    check_values("test::root", "x", x, x < 0, "no negative number", "take its absolute value: x.abs()")


ROOT: Op = rows_op(
    "test::root(Tensor x) -> Tensor y",
    torch.sqrt,
    check_data=_no_negative,
    tolerance=Tolerance({"float32": 1e-6}, {"float32": 1e-6}, lambda _, y: y.abs()),
)
WRONG = torch.tensor([[1.0, 4.0], [-9.0, -16.0]])


@pytest.fixture
def dispatcher(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Dispatcher]:
    """A dispatcher that began with KERNEL_REGISTRY_CHECK as the test's parameter says, 1 without one."""
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", getattr(request, "param", "1"))
    made = Dispatcher(Catalog())
    made.define(ROOT)
    READ.clear()
    former = operators.serve(made)
    yield made
    operators.serve(former)


def test_one_asks_for_checks_and_anything_but_0_is_an_error() -> None:
    assert checking({"KERNEL_REGISTRY_CHECK": "1"})
    assert not any(map(checking, ({}, {"KERNEL_REGISTRY_CHECK": ""}, {"KERNEL_REGISTRY_CHECK": "0"})))
    with pytest.raises(InvalidArgumentError, match="KERNEL_REGISTRY_CHECK='yes'\n  expected 1"):
        checking({"KERNEL_REGISTRY_CHECK": "yes"})


def accepts(values: Mapping[str, Any]) -> Any:
    return True


def test_a_check_that_returns_a_verdict_is_told(dispatcher: Dispatcher) -> None:
    """A call looks at what it raises alone: it would check nothing."""
    verdict = rows_op("test::verdict(Tensor x) -> Tensor y", torch.sqrt, check_data=accepts)
    dispatcher.define(verdict)
    with pytest.raises(InvalidDefinitionError, match=r"check_data\(\) returned True \(.*test_data_checks\.py:"):
        dispatcher.call("test::verdict", torch.ones(2, 3))


@pytest.mark.parametrize("dispatcher", ["", "0"], indirect=True)
def test_no_call_reads_its_data_by_default(dispatcher: Dispatcher) -> None:
    for _ in range(3):
        assert dispatcher.call("test::root", WRONG).isnan().any()
    assert dispatcher.bound("test::root").misses == 1, "the others are hits"
    assert not READ


def test_each_way_in_reads_the_data_of_each_call(dispatcher: Dispatcher) -> None:
    held = dispatcher.op("test::root")
    operator = operators.define(ROOT)
    compiled = torch.compile(lambda x: held(x) + 1, backend="eager", fullgraph=True)
    ways = (lambda x: dispatcher.call("test::root", x), lambda x: dispatcher.call("test::root", x=x), held, operator)
    for way in (*ways, compiled):
        for _ in range(2):
            way(WRONG.abs())
            with pytest.raises(OutOfRangeError, match=r"x\[1, 0\] is -9.0, expected no negative number, and 1 more"):
                way(WRONG)
    assert len(READ) == 4 * (len(ways) + 1)


@pytest.mark.parametrize("dispatcher", ["0"], indirect=True)
def test_on_a_cpu_wrong_data_are_told_where_they_make_a_kernel_fail(
    dispatcher: Dispatcher, recwarn: pytest.WarningsRecorder
) -> None:
    weight = torch.randn(5, 4)
    with dispatcher.using(embedding="torch.native"):
        for indices in ([1, 9], [1, 2], [1, 9], [1, 2, 3], [1, 2, 9]):  # a miss, hits, and another size
            if 9 in indices:
                with pytest.raises(OutOfRangeError, match=rf"indices\[{len(indices) - 1}\] is 9, expected 0 to 4"):
                    dispatcher.call("embedding", torch.tensor(indices), weight)
            else:
                assert dispatcher.call("embedding", torch.tensor(indices), weight).equal(weight[indices])
        assert dispatcher.explain("embedding", torch.tensor([1, 2]), weight).implementation == "torch.native"
    assert not recwarn.list, "nothing is put aside"


@pytest.mark.parametrize("forced", [True, False])
def test_on_a_cpu_wrong_data_are_told_by_an_op_that_writes_to_its_arguments(
    forced: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_PLUGINS", "torch")
    dispatcher, key = Dispatcher(Catalog()), torch.randn(3, 2, 8)
    cache = torch.zeros(2, 4, 2, 8)
    with dispatcher.using(kv_cache_append="torch.native") if forced else contextlib.nullcontext():
        for slots in ([0, 1, 8], [0, 1, 2], [0, 1, 8], [0, 1], [0, 8]):  # a miss, hits, and another size
            new = key[: len(slots)]
            wrong = pytest.raises(
                OutOfRangeError, match=rf"slot_mapping\[{len(slots) - 1}\] is 8, expected less than 8"
            )
            with wrong if 8 in slots else contextlib.nullcontext():
                dispatcher.call("kv_cache_append", new, new, cache, cache.clone(), torch.tensor(slots))
        explanation = dispatcher.explain("kv_cache_append", key, key, cache, cache.clone(), torch.arange(3))
    assert explanation.implementation == "torch.native"
    assert not recwarn.list, "nothing is put aside"


def test_the_reference_tells_wrong_data_on_a_cpu() -> None:
    dispatcher = Dispatcher(Catalog())
    dispatcher.configure(mode="reference")
    table, query = torch.randn(9, 8), torch.randn(3, 16)
    with pytest.raises(OutOfRangeError, match=r"rotary_embedding: positions\[2\] is 9, expected 0 to 8"):
        dispatcher.call("rotary_embedding", torch.tensor([0, 1, 9]), query, query.clone(), 8, table, True)


def test_data_are_read_where_another_tensor_has_no_elements(dispatcher: Dispatcher) -> None:
    none, table = torch.empty(3, 0), torch.randn(9, 8)
    for wrong in (9, -1):
        with pytest.raises(OutOfRangeError, match=rf"rotary_embedding: positions\[2\] is {wrong}, expected 0 to 8"):
            dispatcher.call("rotary_embedding", torch.tensor([0, 1, wrong]), torch.randn(3, 8), none, 8, table, True)


@pytest.mark.parametrize("op", ["cross_entropy", "fused_linear_cross_entropy"])
def test_targets_are_classes_or_ignored(dispatcher: Dispatcher, op: str) -> None:
    given = (torch.randn(3, 8),) if op == "cross_entropy" else (torch.randn(3, 4), torch.randn(8, 4))
    dispatcher.call(op, *given, torch.tensor([0, -100, 7]))
    for wrong in (8, -1):
        message = rf"{op}: target\[1\] is {wrong}, expected 0 to 7, a class, or ignore_index=-100"
        with pytest.raises(OutOfRangeError, match=message):
            dispatcher.call(op, *given, torch.tensor([0, wrong, 7]))


def test_the_error_is_an_index_error_and_says_what_to_do(dispatcher: Dispatcher) -> None:
    with pytest.raises(IndexError, match="take its absolute value") as caught:
        dispatcher.call("test::root", WRONG)
    assert isinstance(caught.value, InvalidArgumentError)


def test_what_the_problem_refuses_is_not_read(dispatcher: Dispatcher) -> None:
    with pytest.raises(InvalidArgumentError, match="int32"):
        dispatcher.call("test::root", WRONG.int())
    for x in (torch.empty(0, 3), torch.empty(2, 3, device="meta")):
        dispatcher.call("test::root", x)
    torch.func.vmap(dispatcher.op("test::root"))(WRONG)
    assert not READ


def test_ops_without_a_check_keep_their_hits(dispatcher: Dispatcher) -> None:
    for _ in range(3):
        dispatcher.call("square", WRONG)
    assert dispatcher.bound("square").misses == 1


def test_offsets_of_experts_must_not_decrease(dispatcher: Dispatcher) -> None:
    x, weights = torch.randn(6, 8), torch.randn(3, 4, 8)
    dispatcher.call("grouped_gemm", x, weights, torch.tensor([0, 2, 2, 9]))
    message = r"grouped_gemm: offsets\[2\] is 1, expected no less than the offset before it\n  rows offsets"
    with pytest.raises(OutOfRangeError, match=message):
        dispatcher.call("grouped_gemm", x, weights, torch.tensor([0, 4, 1, 6]))


@pytest.mark.parametrize("op", [op for op in BOX if op.check_data is not None], ids=lambda op: op.name)
def test_the_inputs_of_the_box_pass_their_checks(op: Op) -> None:
    assert op.check_data is not None
    for place, kind in enumerate(op.kinds):
        # losses are defined for targets outside of the vocabulary, too
        outside = kind == "outside"
        example = next(dims for dims in op.examples if int(dims["rows"]) > 2) if outside else op.examples[place]
        problem = op.problem_of(example)
        values = op.draw(problem, kind, torch.Generator().manual_seed(place))
        with pytest.raises(OutOfRangeError) if outside else contextlib.nullcontext():
            op.check_data(dict(zip(op.parsed.names, values, strict=True)))
