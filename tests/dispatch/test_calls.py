"""The hot path: what hits it, and that every unusual call is right all the same."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

import registry_cpp
from registry import (
    CompileError,
    DispatchWarning,
    InvalidArgumentError,
    RegistryError,
    UnknownNameError,
    UnsupportedError,
    quantize,
)
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.hit.table import Entry, Table
from registry.errors import ArgumentTypeError, NotReadyError


@pytest.fixture
def one(dispatcher: Dispatcher, told: Any) -> Any:
    """The implementation that answers plain calls."""
    implementation = told("a.one")
    dispatcher.register(implementation)
    return implementation


def misses(dispatcher: Dispatcher) -> int:
    return dispatcher.bound("softmax").misses


def check(dispatcher: Dispatcher, x: torch.Tensor, *args: Any, **attributes: Any) -> torch.Tensor:
    y: torch.Tensor = dispatcher.call("softmax", x, *args, **attributes)
    dim = args[0] if args else attributes.get("dim", -1)
    torch.testing.assert_close(y.detach(), torch.softmax(x.detach(), dim))
    return y


def test_the_second_call_is_a_hit_in_every_form(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((-1,), {}),
        ((), {"dim": -1}),
        ((0,), {}),
        ((), {"dim": 0}),
    ]
    for args, attributes in forms * 2:
        check(dispatcher, x, *args, **attributes)
        check(dispatcher, torch.randn(4, 8), *args, **attributes)
    assert misses(dispatcher) == 2, "the forms of a call are one to the hot path"
    assert one.bound == 2
    assert dispatcher.op("softmax")(x).equal(torch.softmax(x, -1))
    assert misses(dispatcher) == 2


def test_arguments_by_keyword_are_right_in_any_order(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    for _ in range(2):
        assert dispatcher.call("softmax", dim=0, x=x).equal(torch.softmax(x, 0))
        assert dispatcher.call("softmax", x=x, dim=0).equal(torch.softmax(x, 0))


def test_shapes_dtypes_and_strides_have_plans_of_their_own(dispatcher: Dispatcher, one: Any) -> None:
    for x in (
        torch.randn(4, 8),
        torch.randn(8, 4).t(),
        torch.randn(4, 8, dtype=torch.float64).float(),
        torch.randn(4, 9),
    ):
        check(dispatcher, x)
    assert check(dispatcher, torch.randn(4, 8).bfloat16()).dtype == torch.bfloat16
    assert misses(dispatcher) == 4


@pytest.mark.parametrize("bad", [True, 1.0, "0", None])
def test_mistyped_attributes_never_hit(dispatcher: Dispatcher, one: Any, bad: Any) -> None:
    x = torch.randn(4, 8)
    check(dispatcher, x, 1)
    check(dispatcher, x, dim=0)
    with pytest.raises(InvalidArgumentError, match="dim must be an int"):
        dispatcher.call("softmax", x, bad)
    with pytest.raises(InvalidArgumentError, match="dim must be an int"):
        dispatcher.call("softmax", x, dim=bad)


def test_an_integer_for_a_float_is_coerced(dispatcher: Dispatcher) -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)
    expected = dispatcher.call("rms_norm", x, weight, 1.0)
    for _ in range(2):
        assert dispatcher.call("rms_norm", x, weight, 1).equal(expected)
        assert dispatcher.call("rms_norm", x, weight, eps=1).equal(expected)
        with pytest.raises(InvalidArgumentError, match="eps must be a float"):
            dispatcher.call("rms_norm", x, weight, True)


def test_bad_calls_fail_before_anything_runs(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    with pytest.raises(UnknownNameError, match="did you mean softmax"):
        dispatcher.call("sofmax", x)
    for args, attributes in [((), {}), ((x, 1, 2), {}), ((x,), {"dmi": 0}), (([1.0],), {}), ((x, 5), {})]:
        with pytest.raises(InvalidArgumentError):
            dispatcher.call("softmax", *args, **attributes)
    with pytest.raises(InvalidArgumentError, match="several devices"):
        dispatcher.call("rms_norm", x, torch.randn(8, device="meta"))
    assert not one.runs


STRANGE = {
    "a sparse_coo tensor": (lambda x: x.to_sparse(), r"convert it: \.to_dense\(\)"),
    "a sparse_csr tensor": (lambda x: x.to_sparse_csr(), r"convert it: \.to_dense\(\)"),
    "a mkldnn tensor": (lambda x: x.to_mkldnn(), r"convert it: \.to_dense\(\)"),
    "a quantized tensor": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), r"\.dequantize\(\)"),
    "a nested tensor": (lambda x: torch.nested.nested_tensor([x, x[:2]]), r"\.to_padded_tensor\(0\.0\)"),
}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype|deprecated)")
@pytest.mark.parametrize("kind", STRANGE)
def test_a_tensor_that_is_not_dense_is_refused_before_anything_runs(
    dispatcher: Dispatcher, one: Any, kind: str
) -> None:
    make, remedy = STRANGE[kind]
    x = torch.randn(4, 8)
    check(dispatcher, x)
    strange = make(x)
    for ask in (dispatcher.call, dispatcher.explain):
        with pytest.raises(InvalidArgumentError, match=f"^softmax: x is {kind}, expected a dense one\n  .*{remedy}"):
            ask("softmax", strange)
    with pytest.raises(InvalidArgumentError, match=f"^vector_add: y is {kind}"):
        dispatcher.call("vector_add", x, strange)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(InvalidArgumentError, match=kind):
        dispatcher.call("softmax", strange)
    assert len(one.runs) == 1


@pytest.mark.parametrize("name", [None, 5, [], torch.softmax])
def test_the_name_of_an_op_must_be_a_string(dispatcher: Dispatcher, name: Any) -> None:
    for ask in (dispatcher.call, dispatcher.explain, dispatcher.op):
        with pytest.raises(InvalidArgumentError, match="the name of an op must be a str, got ") as caught:
            ask(name)
        assert isinstance(caught.value, TypeError)
        assert 'registry.call("softmax", x)' in caught.value.hint


@pytest.mark.parametrize(
    ("args", "attributes", "message"),
    [
        ((), {}, "softmax: missing x"),
        ((1, 2, 3), {}, "softmax: 3 positional arguments given, at most 2 expected"),
        ((torch.ones(2),), {"x": 1}, "softmax: x was given twice"),
        ((torch.ones(2),), {"dmi": 0}, "softmax: no argument 'dmi'"),
    ],
)
def test_a_call_of_the_wrong_form_is_a_type_error_that_shows_the_schema(
    dispatcher: Dispatcher, args: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{message}\n  schema: softmax"):
        dispatcher.call("softmax", *args, **attributes)
    assert issubclass(ArgumentTypeError, TypeError)


@pytest.mark.parametrize("eps", [float("nan"), float("inf"), -1e-6])
def test_an_epsilon_that_is_no_small_number_is_refused_in_every_state(dispatcher: Dispatcher, eps: float) -> None:
    x, weight = torch.randn(4, 8), torch.ones(8)
    states = (x, x.clone().requires_grad_(), x.to("meta"))
    for given in states:
        with pytest.raises(InvalidArgumentError, match=r"^rms_norm: eps=.*\n  expected a finite number of at least 0"):
            dispatcher.call("rms_norm", given, weight.to(given.device), eps)
    with pytest.raises(InvalidArgumentError, match="rms_norm: eps="):
        torch.vmap(lambda row: dispatcher.call("rms_norm", row, weight, eps))(x)
    assert dispatcher.call("rms_norm", x, weight, 0.0).shape == x.shape


def test_one_tensor_twice(dispatcher: Dispatcher, told: Any) -> None:
    add = told("a.add", op="vector_add", result=torch.add)
    dispatcher.register(add)
    x, y = torch.randn(8), torch.randn(8)
    for _ in range(2):
        assert dispatcher.call("vector_add", x, y).equal(x + y)
        assert dispatcher.call("vector_add", x, x).equal(x + x)
        assert dispatcher.call("vector_add", y, y).equal(y + y)
    assert dispatcher.bound("vector_add").misses == 2


def test_packed_weights_hit(dispatcher: Dispatcher) -> None:
    weight = quantize(torch.randn(16, 64).bfloat16(), bits=4, group_size=32)
    a = torch.randn(3, 64).bfloat16()
    first = dispatcher.call("gemm_int4", a, weight)
    assert dispatcher.call("gemm_int4", a.clone(), weight).equal(first)
    assert dispatcher.bound("gemm_int4").misses == 1


# --- states of torch


def test_a_gradient_is_right_and_the_kernel_runs_with_it_and_without(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8, dtype=torch.float32, requires_grad=True)
    seed = torch.randn(4, 8)
    for _ in range(2):
        with torch.no_grad():
            assert not check(dispatcher, x).requires_grad
        y = check(dispatcher, x)
        (found,) = torch.autograd.grad(y, x, seed)
        (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, seed)
        torch.testing.assert_close(found, expected)
        check(dispatcher, x.detach())
    assert len(one.runs) == 6
    assert dispatcher.explain("softmax", x).implementation == "a.one"
    assert misses(dispatcher) == 3


def test_inference_mode_has_entries_of_its_own(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    for _ in range(2):
        check(dispatcher, x)
        with torch.inference_mode():
            assert check(dispatcher, x).is_inference()
            inner = torch.randn(4, 8)
            check(dispatcher, inner)
        check(dispatcher, inner)
    assert len(one.runs) == 8
    assert one.bound == 1


def test_autocast_does_not_change_an_ops_dtype(dispatcher: Dispatcher, told: Any) -> None:
    functional = told("a.functional", op="vector_add", returns_outputs=True, result=lambda x, y: x @ torch.eye(8) + y)
    dispatcher.register(functional)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert dispatcher.call("vector_add", x, y).dtype == torch.float32
        assert dispatcher.call("vector_add", x, y).dtype == torch.float32
    assert len(functional.runs) == 4


def test_fake_tensors_and_modes_see_the_reference(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    check(dispatcher, x)
    runs = len(one.runs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(dispatcher.call("softmax", x), FakeTensor)
        assert isinstance(dispatcher.call("softmax", mode.from_tensor(x)), FakeTensor)
    assert isinstance(dispatcher.call("softmax", mode.from_tensor(x)), FakeTensor)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda t: dispatcher.call("softmax", t))(x)
    torch.testing.assert_close(graph(x), torch.softmax(x, -1))
    assert dispatcher.call("softmax", x.to("meta")).device.type == "meta"
    assert len(one.runs) == runs


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_vmap_func_grad_and_jvp(dispatcher: Dispatcher, one: Any) -> None:
    x, tangent = torch.randn(4, 8), torch.randn(4, 8)
    check(dispatcher, x)

    def call(t: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = dispatcher.call("softmax", t)
        return y

    torch.testing.assert_close(torch.vmap(call)(x.view(2, 2, 8)), torch.softmax(x, -1).view(2, 2, 8))
    weighted = torch.func.grad(lambda t: (call(t) * tangent).sum())(x)
    torch.testing.assert_close(weighted, torch.func.grad(lambda t: (torch.softmax(t, -1) * tangent).sum())(x))
    expected = torch.func.jvp(lambda t: torch.softmax(t, -1), (x,), (tangent,))[1]
    torch.testing.assert_close(torch.func.jvp(call, (x,), (tangent,))[1], expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        torch.testing.assert_close(forward_ad.unpack_dual(call(dual)).tangent, expected)
    assert len(one.runs) == 1


def test_subclasses_and_lazy_negations(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    check(dispatcher, x)

    class Named(torch.Tensor):
        pass

    assert isinstance(dispatcher.call("softmax", x.as_subclass(Named)), Named)
    assert len(one.runs) == 2
    torch.testing.assert_close(dispatcher.call("softmax", torch._neg_view(x)), torch.softmax(-x, -1))
    assert len(one.runs) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_jit_trace_records_torch_operations(dispatcher: Dispatcher, one: Any) -> None:
    x = torch.randn(4, 8)
    check(dispatcher, x)
    traced = torch.jit.trace(lambda t: dispatcher.call("softmax", t), (x,), check_trace=False)
    y = torch.randn(4, 8)
    torch.testing.assert_close(traced(y), torch.softmax(y, -1))


def test_torch_compile_traces_through_in_one_graph(dispatcher: Dispatcher, one: Any) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t, dim=0) + 1, fullgraph=True, backend="eager")
    for rows in (4, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), torch.softmax(x, 0) + 1)


@pytest.mark.parametrize("fullgraph", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("op", "args", "kind", "message"),
    [
        ("softmax", (7,), InvalidArgumentError, "^softmax: dim=7 but x has 2 dimensions\n  expected -2 to 1"),
        ("softmax", ("last",), ArgumentTypeError, "^softmax: dim must be an int, got 'last'"),
        ("softmax", (0, 1), ArgumentTypeError, "^softmax: 3 positional arguments given, at most 2"),
        ("rms_norm", (torch.ones(8), -1.0), InvalidArgumentError, "^rms_norm: eps=-1.0\n  expected a finite number"),
        ("gemm_int4", (torch.ones(8),), ArgumentTypeError, "^gemm_int4: w is a Tensor, expected a PackedWeight"),
        ("sofmax", (), UnknownNameError, "^unknown op 'sofmax'\n  did you mean softmax?"),
        (None, (), ArgumentTypeError, "^the name of an op must be a str, got None"),
    ],
)
@pytest.mark.few(2)
def test_a_bad_call_under_torch_compile_is_the_same_error(
    dispatcher: Dispatcher, op: Any, args: tuple[Any, ...], kind: type[Exception], message: str, fullgraph: bool
) -> None:
    compiled = torch.compile(lambda t: dispatcher.call(op, t, *args) + 1, fullgraph=fullgraph, backend="aot_eager")
    with pytest.raises(kind, match=message) as caught:
        compiled(torch.randn(4, 8))
    assert isinstance(caught.value, RegistryError)
    assert "\n" not in caught.value.message


@pytest.mark.thorough
def test_a_good_call_after_a_bad_one_is_compiled(dispatcher: Dispatcher, one: Any) -> None:
    compiled = torch.compile(lambda t, dim: dispatcher.call("softmax", t, dim), fullgraph=True, backend="eager")
    x = torch.randn(4, 8)
    with pytest.raises(InvalidArgumentError, match="dim=2"):
        compiled(x, 2)
    torch.testing.assert_close(compiled(x, 0), torch.softmax(x, 0))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (1,), (), (2, 3, 4, 5)])
def test_empty_small_and_deep_tensors(dispatcher: Dispatcher, one: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for _ in range(2):
        check(dispatcher, x)


def test_a_misaligned_tensor_does_not_reach_what_needs_alignment(dispatcher: Dispatcher, told: Any) -> None:
    aligned = told("a.aligned", 5.0, unsupported=lambda problem: [] if problem.traits["aligned"] else ["misaligned"])
    dispatcher.register(aligned)
    dispatcher.register(told("a.any"))
    whole, shifted = torch.randn(4, 8), torch.randn(33)[1:].view(4, 8)
    for _ in range(2):
        check(dispatcher, whole)
        check(dispatcher, shifted)
    assert len(aligned.runs) == 2
    assert misses(dispatcher) == 2


def test_a_first_misaligned_call_does_not_bind_aligned_ones(dispatcher: Dispatcher, told: Any) -> None:
    aligned = told("a.aligned", 5.0, unsupported=lambda problem: [] if problem.traits["aligned"] else ["misaligned"])
    dispatcher.register(aligned)
    check(dispatcher, torch.randn(33)[1:].view(4, 8))
    check(dispatcher, torch.randn(4, 8))
    assert len(aligned.runs) == 1


def test_zeros_without_memory_and_freed_tensors_reach_no_kernel(dispatcher: Dispatcher, one: Any) -> None:
    check(dispatcher, torch.randn(4, 8))
    zero = torch._efficientzerotensor((4, 8))
    for _ in range(2):
        check(dispatcher, zero)
    freed = torch.randn(5, 8)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not allocated"):
        dispatcher.call("softmax", freed)
    assert len(one.runs) == 1
    with dispatcher.using(softmax="a.one"), pytest.raises(UnsupportedError, match="zero without memory"):
        dispatcher.call("softmax", zero)


def test_a_tensor_that_was_freed_reaches_no_compiled_kernel_on_a_hit() -> None:
    (rows,) = (one for one in registry_cpp.softmax_implementations() if one.name == "cpp.rows")
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.register(rows)
    for shape in ((4, 8), (4, 8), (5, 8)):
        check(dispatcher, torch.randn(shape))
    for shape in ((4, 8), (6, 8)):
        freed = torch.randn(shape)
        freed.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="not allocated"):
            dispatcher.call("softmax", freed)
        check(dispatcher, torch.randn(shape))
    assert dispatcher.explain("softmax", torch.randn(4, 8)).implementation == "cpp.rows"


def test_a_block_of_forward_mode_keeps_the_table_as_it_is(dispatcher: Dispatcher, one: Any) -> None:
    with forward_ad.dual_level():
        for _ in range(5):
            check(dispatcher, torch.randn(4, 8))
    now = dispatcher.bound("softmax").table.now
    assert [len(entries) for entries in now.shapes.values()] == [1]
    assert (len(one.runs), one.bound) == (5, 1)
    assert dispatcher.explain("softmax", torch.randn(4, 8)).calls == 5


# --- tables and threads


def test_registering_is_seen_by_the_next_call(dispatcher: Dispatcher, one: Any, told: Any) -> None:
    x = torch.randn(4, 8)
    call = dispatcher.op("softmax")
    call(x)
    better = told("a.better", 5.0)
    dispatcher.register(better)
    call(x)
    assert len(better.runs) == 1


def test_the_table_is_bounded() -> None:
    table = Table(0, most_shapes=3, most_entries=2)
    entry = Entry(lambda *given: False, (), None, print, int, None)
    for rows in range(10):
        for _ in range(5):
            table.add(torch.Size([rows]), entry, table.generation)
    assert len(table) == 3
    assert {shape: len(found) for shape, found in table.now.shapes.items()} == {(7,): 2, (8,): 2, (9,): 2}


def test_what_was_resolved_before_the_table_was_cleared_is_not_added() -> None:
    table = Table(0)
    generation, before = table.generation, table.now
    table.clear()
    entry = Entry(lambda *given: True, (), None, print, int, None)
    table.add(torch.Size([1]), entry, generation)
    before.recent = tuple(entry)  # as a call does that was on its way
    assert not len(table)
    assert table.find((1,), (), (), False) is None
    assert table.now.recent != tuple(entry)


@pytest.mark.parametrize("fault", [None, CompileError("late")])
def test_what_was_resolved_before_forget_is_not_kept(
    dispatcher: Dispatcher, told: Any, fault: CompileError | None
) -> None:
    x, better = torch.randn(4, 8), told("a.better", 5.0)

    def forget(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        slow._behaviour["result"] = torch.softmax
        dispatcher.register(better)
        if fault is not None:
            raise fault
        return torch.softmax(tensor, dim)

    slow = told("a.slow", 1.0, result=forget)
    dispatcher.register(slow)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DispatchWarning)
        check(dispatcher, x)
    check(dispatcher, x, dim=-1)
    check(dispatcher, x)
    assert len(better.runs) == 2
    with dispatcher.using(softmax="a.slow"):
        check(dispatcher, x)


def test_using_for_another_op_leaves_the_fallback_on(dispatcher: Dispatcher, one: Any, told: Any) -> None:
    steady = told("a.steady", -5.0)
    dispatcher.register(steady)
    dispatcher.register(told("a.add", op="vector_add", result=torch.add))
    x = torch.randn(4, 8)
    check(dispatcher, x)
    one._behaviour["run_fault"] = NotReadyError("not now")
    with dispatcher.using(vector_add="a.add"):
        check(dispatcher, x)
    assert len(steady.runs) == 1
    one._behaviour["run_fault"] = None
    with dispatcher.using(softmax="a.one"):
        check(dispatcher, x)
        one._behaviour["run_fault"] = NotReadyError("not now")
        with pytest.raises(NotReadyError, match="not now"):
            dispatcher.call("softmax", x)


def test_threads_share_plans_and_using_stays_in_its_thread(dispatcher: Dispatcher, one: Any, told: Any) -> None:
    other = told("a.other", -5.0)
    dispatcher.register(other)
    x, faults, start = torch.randn(4, 8), [], threading.Barrier(4)

    def work(forced: bool) -> None:
        try:
            start.wait()
            for n in range(50):
                if forced:
                    with dispatcher.using(softmax="a.other"):
                        check(dispatcher, x)
                        assert dispatcher.explain("softmax", x).implementation == "a.other"
                else:
                    check(dispatcher, torch.randn(4 + n % 3, 8))
                    assert dispatcher.explain("softmax", x).implementation == "a.one"
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert (len(other.runs), len(one.runs)) == (100, 100)
    assert dispatcher.forcing.active == 0
