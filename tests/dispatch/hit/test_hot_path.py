"""What the written functions take, in every form, and what they must never hand to torch's guard."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import DispatchWarning, InvalidArgumentError, Op, Problem, quantize
from registry.contract import Floor, Packed, Tolerance
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.hit.counter import Counter
from registry.dispatch.hit.hot_path import MISSING, given
from registry.errors import ArgumentTypeError, InvalidDefinitionError, NotReadyError

from ... import fresh


def op_of(schema: str, reference: Any, **more: Any) -> Op:
    name = schema.partition("(")[0]
    return Op(
        name=name,
        schema=schema,
        version=1,
        reference=reference,
        problem=lambda arguments: Problem(name, {"n": next(iter(arguments.tensors.values())).numel}),
        inputs=lambda problem, kind, generator: (torch.zeros(int(problem.n)),),
        floor=lambda problem: Floor(0, 0),
        tolerance=Tolerance({}, {}, lambda problem, reference: reference),
        static=frozenset(),
        dynamic=frozenset({"n"}),
        **more,
    )


SCALE = op_of(
    "acme::scale(Tensor x, Tensor? bias=None, float by=2.0, bool negate=False, *, str how='mul') -> Tensor y",
    lambda x, bias, by, negate, how: (
        (-1.0 if negate else 1.0) * (x * by if how == "mul" else x + by) + (0 if bias is None else bias)
    ),
)
ODD = op_of("acme::odd(Tensor x, int lambda=1) -> Tensor y", lambda x, times: x * times)


def expected(
    x: torch.Tensor, bias: Any = None, by: float = 2.0, negate: bool = False, how: str = "mul"
) -> torch.Tensor:
    y = SCALE.reference(x, bias, by, negate, how)
    assert isinstance(y, torch.Tensor)
    return y


@pytest.fixture
def scale(dispatcher: Dispatcher) -> Dispatcher:
    dispatcher.catalog.define(SCALE)
    dispatcher.catalog.define(ODD)
    return dispatcher


FORMS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((None, 3.0), {}),
    ((), {"by": 3.0}),
    ((), {"by": 3, "negate": True}),
    ((), {"negate": True, "by": 3.0, "how": "add"}),
    ((torch.full((4,), 5.0),), {"how": "add"}),
    ((), {"bias": torch.full((4,), 5.0)}),
    ((None, 0.0), {}),
    ((None, -0.0), {}),
    ((None, 3.0, True), {"how": "add"}),
]


@pytest.mark.parametrize("way", ["call", "op"])
def test_every_form_of_a_call_is_right_and_hits(scale: Dispatcher, way: str) -> None:
    call = scale.op("acme::scale") if way == "op" else lambda *args, **named: scale.call("acme::scale", *args, **named)
    x = torch.randn(4)
    for _ in range(3):
        for args, named in FORMS:
            y = call(x, *args, **named)
            assert y.equal(expected(x, *args, **named))
            assert torch.equal(torch.signbit(y), torch.signbit(expected(x, *args, **named)))
    bound = scale.bound("acme::scale")
    known = bound.misses
    for args, named in FORMS:
        call(x, *args, **named)
        call(x=x, **dict(zip(("bias", "by", "negate"), args, strict=False)), **named)
    assert bound.misses == known


def test_wrong_forms_are_refused_by_the_schema_on_a_known_shape(scale: Dispatcher) -> None:
    x = torch.randn(4)
    for call in (scale.op("acme::scale"), lambda *args, **named: scale.call("acme::scale", *args, **named)):
        call(x)
        call(x)
        bad: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}),
            ((x, None, 1.0, True, "add"), {}),
            ((x,), {"hwo": "add"}),
            ((x,), {"by": "2"}),
            ((x,), {"by": True}),
            ((x, 3.0), {}),
            (("x",), {}),
            ((None,), {}),
        ]
        for args, named in bad:
            with pytest.raises(ArgumentTypeError):
                call(*args, **named)
    with pytest.raises(ArgumentTypeError, match="by was given twice"):
        scale.call("acme::scale", x, None, 1.0, by=2.0)
    with pytest.raises(TypeError, match="multiple values for argument 'by'"):
        scale.op("acme::scale")(x, None, 1.0, by=2.0)


def test_a_parameter_named_as_a_word_of_python_works(scale: Dispatcher) -> None:
    x = torch.randn(4)
    for _ in range(2):
        assert scale.call("acme::odd", x, 3).equal(x * 3)
        assert scale.op("acme::odd")(x, **{"lambda": 2}).equal(x * 2)
    with pytest.raises(ArgumentTypeError):
        scale.call("acme::odd", x, 3, 4)


def test_a_packed_argument_may_be_given_in_any_form(dispatcher: Dispatcher) -> None:
    a = torch.randn(3, 128, dtype=torch.bfloat16)
    weights = [
        quantize(torch.randn(64, 128, dtype=torch.bfloat16), group_size=32, symmetric=bool(n % 2)) for n in range(4)
    ]
    bound = dispatcher.bound("gemm_int4")
    for _ in range(2):
        for w in weights:
            right = dispatcher.catalog.op("gemm_int4").reference(
                a, w.qweight, w.scales, w.zeros, w.bits, w.group_size, 128, w.layout
            )
            for y in (
                dispatcher.call("gemm_int4", a, w),
                dispatcher.call("gemm_int4", a, w=w),
                dispatcher.call("gemm_int4", w=w, a=a),
                dispatcher.op("gemm_int4")(a, w),
                dispatcher.op("gemm_int4")(w=w, a=a),
                bound.flat(a, w.qweight, w.scales, w.zeros, w.bits, w.group_size, w.shape[1], w.layout),
                dispatcher.call("gemm_int4", a, w.qweight, w.scales, w.zeros, w.bits, w.group_size, 128, w.layout),
            ):
                assert y.equal(right)
    assert bound.misses == 2, "weights of one form are one to the guard"
    for call in (dispatcher.op("gemm_int4"), lambda *args, **named: dispatcher.call("gemm_int4", *args, **named)):
        for args in ((a,), (a, a), (a, None), ()):
            with pytest.raises(ArgumentTypeError):
                call(*args)
        with pytest.raises(ArgumentTypeError):
            call(a, weights[0], other=1)
    with pytest.raises(InvalidDefinitionError, match="shape"):
        Packed("w", object, {"k": "shape[1].x"})


def test_a_weight_that_an_op_cannot_read_slips_through_no_known_shape(dispatcher: Dispatcher) -> None:
    a = torch.randn(3, 128, dtype=torch.bfloat16)
    w = quantize(torch.randn(64, 128, dtype=torch.bfloat16), group_size=32)
    assert w.zeros is not None
    others = [
        replace(w, g_idx=torch.arange(128, dtype=torch.int32) % 4),
        replace(w, zeros=None, codebook="nf4"),
        replace(w, zeros=w.zeros.float() + 0.5),
    ]
    known = [w, replace(w, zeros=None)]
    calls: list[Any] = [dispatcher.op("gemm_int4"), partial(dispatcher.call, "gemm_int4")]
    for call in calls:
        for _ in range(2):
            for one in known:
                call(a, one)
            for other in others:
                with pytest.raises(InvalidArgumentError, match=r"^gemm_int4: (layout|zeros)"):
                    call(a, other)


def test_a_nested_tensor_never_reaches_torchs_guard() -> None:
    # in a process of its own: the guard does not raise, it aborts
    code = (
        "import torch, registry, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "x, w = torch.randn(4, 8), torch.randn(8)\n"
        "nested = torch.nested.nested_tensor([w, w[:2]])\n"
        "for call in (registry.op('rms_norm'), lambda *args: registry.call('rms_norm', *args)):\n"
        "    [call(x, w) for _ in range(3)]\n"
        "    for args in ((x, nested), (nested, w), (nested, nested)):\n"
        "        try: call(*args)\n"
        "        except registry.InvalidArgumentError as fault: print('nested' in str(fault))\n"
        "packed = registry.quantize(torch.randn(8, 8), group_size=8)\n"
        "try: registry.PackedWeight(nested, packed.scales, None, 4, 8, (8, 8))\n"
        "except registry.InvalidArgumentError as fault: print('nested' in str(fault))\n"
    )
    done = fresh.run("-c", code)
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 7), done.stderr


def test_shapes_that_alternate_hit(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    tensors = [torch.randn(4, 8), torch.randn(8, 4), torch.randn(4, 8).bfloat16(), torch.randn(4, 8)[:, ::2]]
    for _ in range(3):
        for x in tensors:
            for dim in (0, 1):
                torch.testing.assert_close(dispatcher.call("softmax", x, dim), torch.softmax(x, dim))
    misses = dispatcher.bound("softmax").misses
    for x in tensors:
        dispatcher.call("softmax", x, 1)
    assert dispatcher.bound("softmax").misses == misses


def test_a_latest_hit_does_not_outlive_its_table(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    x, call = torch.randn(4, 8), dispatcher.op("softmax")
    for _ in range(3):
        call(x)
    better = told("a.better", 5.0)
    dispatcher.register(better)
    call(x)
    assert len(better.runs) == 1


def test_a_plan_that_is_not_ready_once_falls_back_for_that_call(dispatcher: Dispatcher, told: Any) -> None:
    one, steady = told("a.one"), told("a.steady", -5.0)
    dispatcher.register(one)
    dispatcher.register(steady)
    x = torch.randn(4, 8)
    for _ in range(3):
        dispatcher.call("softmax", x)
    before = dispatcher.explain("softmax", x).calls
    one._behaviour["run_fault"] = NotReadyError("not now")
    dispatcher.call("softmax", x)
    one._behaviour["run_fault"] = None
    assert dispatcher.explain("softmax", x).calls == before
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).calls == before + 1
    assert len(steady.runs) == 1


def test_explain_counts_the_answers_of_a_plan(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    x, call = torch.randn(4, 8), dispatcher.op("softmax")
    assert dispatcher.explain("softmax", x).calls == 0
    for _ in range(5):
        call(x)
        dispatcher.call("softmax", x, dim=1)
    explanation = dispatcher.explain("softmax", x, 1)
    assert explanation.calls == 5
    assert "5 answered by this plan" in str(explanation)
    assert dispatcher.explain("softmax", x).calls == 5, "another attribute, another plan"
    with dispatcher.using(softmax="a.one"):
        call(x)
        assert dispatcher.explain("softmax", x).calls == 1
    dispatcher.forget()
    assert dispatcher.explain("softmax", x).calls == 0


def test_a_counter_counts_and_is_read_without_counting() -> None:
    counter = Counter()
    assert counter.value == 0
    for _ in range(1000):
        counter.hit()
    assert (counter.value, counter.value) == (1000, 1000)


def test_a_warning_from_below_points_at_the_callers_line(dispatcher: Dispatcher, told: Any) -> None:
    slow = told("a.one")
    dispatcher.register(slow)
    x, call = torch.randn(4, 8), dispatcher.op("softmax")
    call(x)

    def broken(*_: Any) -> list[str]:
        raise ZeroDivisionError

    slow._behaviour["unsupported"] = broken
    with pytest.warns(DispatchWarning) as seen:
        call(torch.randn(5, 9))
    assert {Path(one.filename).name for one in seen} == {Path(__file__).name}


def test_arguments_are_given_again_as_they_were() -> None:
    assert given(("x", "dim"), 2, (1, 2), (3,), {}) == ((1, 2, 3), {})
    assert given(("x", "dim"), 2, (1, MISSING), (), {"y": 4}) == ((), {"x": 1, "y": 4})
    assert given(("x", "how"), 1, (1, "a"), (3,), {}) == ((1, 3), {"how": "a"})


@pytest.mark.thorough
def test_torch_compile_traces_the_bound_callable(dispatcher: Dispatcher) -> None:
    call = dispatcher.op("softmax")
    w = quantize(torch.randn(32, 64, dtype=torch.bfloat16), group_size=32)
    gemm = dispatcher.op("gemm_int4")
    x, a = torch.randn(4, 8), torch.randn(3, 64, dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(lambda t: call(t, dim=0) + call(t), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), torch.softmax(x, 0) + torch.softmax(x, -1))
        packed = torch.compile(lambda t: gemm(t, w) + gemm(a=t, w=w), fullgraph=True, backend="eager")
        torch.testing.assert_close(packed(a), 2 * gemm(a, w))
        wrong = torch.compile(lambda t: call(t, dmi=0), fullgraph=True, backend="eager")
        with pytest.raises(InvalidArgumentError, match="no argument 'dmi'"):
            wrong(x)


@pytest.mark.parametrize("way", ["call", "op", "explain"])
def test_a_packed_call_of_the_wrong_form_is_told_in_the_users_terms(dispatcher: Dispatcher, way: str) -> None:
    a, w = torch.randn(3, 128).half(), quantize(torch.randn(64, 128).half(), group_size=32)
    call: Any = (
        dispatcher.op("gemm_int4") if way == "op" else lambda *g, **n: getattr(dispatcher, way)("gemm_int4", *g, **n)
    )
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((a, w, 3), {}, "3 positional arguments given, at most 2 expected"),
        ((a,), {}, "missing w"),
        ((), {}, "missing a, w"),
        ((), {"w": w}, "missing a"),
        ((a,), {"b": w}, "no argument 'b'"),
        ((a, w), {"bits": 4}, "no argument 'bits'"),
    ]
    if way != "op":  # where it is Python's own error
        wrong.append(((a, w), {"w": w}, "w was given twice"))
    for args, named, message in wrong:
        with pytest.raises(ArgumentTypeError, match=message) as caught:
            call(*args, **named)
        assert caught.value.hint == "expected gemm_int4(Tensor a, PackedWeight w)"
    with pytest.raises(ArgumentTypeError, match="missing bits, group_size, k, layout"):
        call(a, w.qweight, w.scales, None)


class Meddling(torch.overrides.TorchFunctionMode):
    """Sees functions of torch, and puts zeros in the place of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return torch.zeros(4, 8) if func in {torch.softmax, torch.empty_like} else func(*args, **kwargs or {})


@pytest.mark.parametrize("known", [False, True], ids=["a first call", "a hit"])
@pytest.mark.parametrize("returns_outputs", [False, True])
def test_what_a_plan_is_made_of_is_out_of_sight_of_torch_function_modes(
    dispatcher: Dispatcher, told: Any, known: bool, returns_outputs: bool
) -> None:
    one = told("a.one", returns_outputs=returns_outputs)
    dispatcher.register(one)
    x = torch.randn(4, 8)
    if known:
        dispatcher.call("softmax", x)
    with Meddling() as mode:
        for rows in (4, 4, 5):
            x = torch.randn(rows, 8)
            mode.seen.clear()
            y = dispatcher.call("softmax", x)
            assert not {"softmax", "copy_"} & set(mode.seen)
            mode.seen.clear()
            assert dispatcher.explain("softmax", x).implementation == "a.one"
            torch.testing.assert_close(y, x.exp() / x.exp().sum(-1, keepdim=True))
    assert len(one.runs) == 3 + known


def test_a_torch_function_mode_sees_what_the_reference_is_made_of_and_the_operator(dispatcher: Dispatcher) -> None:
    x = torch.randn(4, 8)
    dispatcher.configure(mode="reference")
    for _ in range(2):
        with Meddling() as mode:
            assert not dispatcher.call("softmax", x).any()
        assert "softmax" in mode.seen
    with Meddling() as mode:
        torch.ops.kernel_registry.softmax(x)
    assert mode.seen == ["softmax"]


NAMES = op_of(
    "acme::names(Tensor print, int len=1, float type=2.0, str _x='a', *, bool rows=False, int __table=3, int str=4)"
    " -> Tensor y",
    lambda x, length, kind, text, rows, table, string: x * length + kind + table * 10 + string * 100 + (text == "b"),
)


@pytest.mark.parametrize("way", ["op", "call"])
def test_parameters_may_have_any_name_that_python_allows(dispatcher: Dispatcher, way: str) -> None:
    dispatcher.catalog.define(NAMES)
    bound = dispatcher.op("acme::names")
    call = bound if way == "op" else lambda *args, **named: dispatcher.call("acme::names", *args, **named)
    x = torch.randn(4)
    for _ in range(2):
        assert call(x).equal(x + 2.0 + 30 + 400)
        assert call(x, 2, 3.0, "b").equal(x * 2 + 3.0 + 30 + 400 + 1)
        assert call(print=x, len=2, type=3, _x="b", rows=True, __table=5, str=6).equal(x * 2 + 3.0 + 50 + 600 + 1)
        with pytest.raises(ArgumentTypeError):
            call(x, 2.5)
        with pytest.raises(ArgumentTypeError):
            call(x, table=1)
