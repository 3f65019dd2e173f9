"""One plan for many row counts: new ones hit, and each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import registry_cpp
import registry_torch
from registry import Config, Device, Implementation, Problem, Space, TensorSpec, quantize
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve import ranges
from registry.dispatch.resolve.ranges import MOST_FAILURES
from registry.dispatch.torch_side.torch_private import native_rows_guard, public_rows_guard
from registry.dispatch.warmup import warm
from registry.errors import NotReadyError
from registry.implementation import Run


def dispatching(*implementations: Implementation) -> Dispatcher:
    dispatcher = Dispatcher(Catalog(entry_points=()))
    for implementation in implementations:
        dispatcher.register(implementation)
    return dispatcher


def native(op: str) -> Implementation:
    """torch's own implementation of an op."""
    offered: Sequence[Implementation] = getattr(registry_torch, f"{op}_implementations")()
    return next(one for one in offered if one.name == "torch.native")


def compiled(op: str, name: str) -> Implementation:
    """A C++ kernel of the box."""
    offered: Sequence[Implementation] = getattr(registry_cpp, f"{op}_implementations")()
    return next(one for one in offered if one.name == name)


def right(y: torch.Tensor, x: torch.Tensor) -> None:
    torch.testing.assert_close(y, torch.softmax(x, -1))
    assert y.is_contiguous()


# --- new row counts hit


def test_new_row_counts_of_torchs_own_operators_hit_and_are_right() -> None:
    dispatcher = dispatching(*map(native, ("softmax", "rms_norm", "gelu", "vector_add")))
    weight = torch.randn(24)
    calls: dict[str, tuple[Callable[[torch.Tensor], tuple[torch.Tensor, ...]], Callable[..., torch.Tensor]]] = {
        "softmax": (lambda x: (x,), lambda x: torch.softmax(x, -1)),
        "rms_norm": (lambda x: (x, weight), lambda x, w: torch.nn.functional.rms_norm(x, (24,), w, 1e-6)),
        "gelu": (lambda x: (x,), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        "vector_add": (lambda x: (x, x + 1), torch.add),
    }
    for op, (arguments, expected) in calls.items():
        dispatcher.call(op, *arguments(torch.randn(5, 24)))
        for rows in (1, 2, 6, 7, 24, 100, 4097):
            values = arguments(torch.randn(rows, 24))
            torch.testing.assert_close(dispatcher.call(op, *values), expected(*values))
        assert dispatcher.bound(op).misses == 1
        assert len(dispatcher.bound(op).table) == 1


def test_a_packed_weight_serves_every_token_count() -> None:
    dispatcher = dispatching(native("gemm_int4"))
    weight = quantize(torch.randn(16, 64, dtype=torch.bfloat16), group_size=32)
    for shape in ((3, 64), (1, 64), (50, 64), (2, 5, 64), (7, 1, 64)):
        a = torch.randn(shape, dtype=torch.bfloat16)
        y = dispatcher.call("gemm_int4", a, weight)
        expected = (a.float() @ weight.dequantize().float().t()).bfloat16()
        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.05)
    assert dispatcher.bound("gemm_int4").misses == 2, "one for each rank"


def test_leading_sizes_count_by_their_product() -> None:
    dispatcher = dispatching(compiled("softmax", "cpp.rows"))
    bound = dispatcher.bound("softmax")
    right(dispatcher.call("softmax", x := torch.randn(2, 3, 40)), x)
    for shape in ((3, 2, 40), (1, 9, 40), (7, 1, 40), (2, 4, 40)):
        right(dispatcher.call("softmax", x := torch.randn(shape)), x)
    assert bound.misses == 1
    part = torch.randn(4, 10, 40)[:, :5]
    right(dispatcher.call("softmax", part), part)
    right(dispatcher.call("softmax", part.transpose(0, 1)), part.transpose(0, 1))
    assert bound.misses == 3, "what is not row-major is no hit"


@pytest.mark.parametrize("name", ["cpp.rows", "cpp.columns"])
def test_a_compiled_kernel_gets_the_row_count_of_each_call(name: str) -> None:
    dispatcher = dispatching(compiled("softmax", name))
    bound = dispatcher.bound("softmax")
    for rows in (3, 1, 2, 4, 5, 9, 31, 32, 33, 16):
        x = torch.randn(rows, 4096)
        right(dispatcher.call("softmax", x), x)
    assert bound.misses < 10, "row counts that take other numbers of threads"
    assert any("cpp" in dispatcher.explain("softmax", torch.randn(rows, 4096)).implementation for rows in (3, 20))


def test_scratch_grows_with_the_rows() -> None:
    dispatcher = dispatching(compiled("gemm_int4", "cpp.gemm"))
    weight = quantize(torch.randn(32, 64), group_size=32)
    for rows in (9, 8, 64, 33, 17, 5, 12):
        a = torch.randn(rows, 64, dtype=torch.bfloat16)
        y = dispatcher.call("gemm_int4", a, weight.to(dtype=torch.bfloat16))
        expected = (a.float() @ weight.to(dtype=torch.bfloat16).dequantize().float().t()).bfloat16()
        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.05)
    assert dispatcher.bound("gemm_int4").misses < 7


def test_attributes_dtypes_and_columns_have_intervals_of_their_own() -> None:
    dispatcher = dispatching(native("rms_norm"))
    for _ in range(2):
        for rows in (4, 5, 6):
            for cols, dtype, eps in ((8, torch.float32, 1e-6), (8, torch.float32, 0.5), (8, torch.bfloat16, 1e-6),
                                     (9, torch.float32, 1e-6)):  # fmt: skip
                x, weight = torch.randn(rows, cols).to(dtype), torch.randn(cols).to(dtype)
                expected = torch.nn.functional.rms_norm(x, (cols,), weight, eps)
                torch.testing.assert_close(dispatcher.call("rms_norm", x, weight, eps), expected)
    # a shape that has an entry of its own is not looked for elsewhere
    assert dispatcher.bound("rms_norm").misses <= 4 + 2


def test_a_weight_as_long_as_there_are_rows_does_not_vary() -> None:
    dispatcher = dispatching(native("rms_norm"))
    weight = torch.randn(16)
    for rows in (16, 15, 17):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(
            dispatcher.call("rms_norm", x, weight), torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
        )
    assert dispatcher.bound("rms_norm").misses == 1


def test_two_tensors_that_vary_must_agree() -> None:
    dispatcher = dispatching(native("vector_add"))
    x = torch.randn(6, 4)
    dispatcher.call("vector_add", x, x)
    assert dispatcher.call("vector_add", x[:3], x[:3]).equal(x[:3] * 2)
    assert dispatcher.bound("vector_add").misses == 1
    with pytest.raises(Exception, match="shapes must be equal"):
        dispatcher.call("vector_add", x[:3], x[:2])


# --- the same choice


class Sizeless(Implementation):
    """softmax by torch, whatever the rows; tells which config ran."""

    op = "softmax"
    device_types = frozenset({"cpu"})
    any_rows = True

    def __init__(self, name: str = "a.sizeless", **behaviour: Any) -> None:
        self.name = name
        self.ran: list[Config] = []
        self._behaviour = behaviour
        self.returns_outputs = behaviour.get("returns_outputs", False)

    def unsupported(self, problem: Problem, device: Device) -> Sequence[str]:
        return list(self._behaviour.get("unsupported", lambda problem: ())(problem))

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=self._behaviour.get("blocks", lambda problem: [1, 2, 4])(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        return float(self._behaviour.get("preference", lambda problem: 1.0)(problem))

    def fingerprint(self) -> str:
        return "1"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> Any:
            self.ran.append(config)
            if fault := self._behaviour.get("fault", lambda x: None)(values[0]):
                raise fault
            torch.softmax(*values, out=outputs[0])

        return run


def test_every_row_count_gets_the_winner_that_it_would_get_alone(publish: Callable[..., Any]) -> None:
    tuned = {4: 1, 20: 2, 24: 4, 150: 1}
    for rows, block in tuned.items():
        publish({"rows": rows, "cols": 8, "dtype": "float32"}, "a.sizeless", {"block": block})
    implementation = Sizeless(blocks=lambda problem: [1, 2, 4] if problem.rows < 100 else [1, 2])
    dispatcher = dispatching(implementation)
    for rows in (*range(30, 200), *range(1, 30)):
        x = torch.randn(rows, 8)
        right(dispatcher.call("softmax", x), x)
        alone = dispatcher.explain_problem(Problem("softmax", {"rows": rows, "cols": 8, "dtype": "float32"}))
        told = dispatcher.explain("softmax", x)
        assert (told.config, told.step, told.octaves) == (alone.config, alone.step, alone.octaves)
        assert implementation.ran[-1] == alone.config, rows
    # 1 to 3, 5 to 8, 9 to 19, 21, 22 and 23, 25 to 60, 61 to 99, 100 to 149, 151 and more
    assert dispatcher.bound("softmax").misses == 4 + 9


def test_heuristics_that_change_with_the_rows_end_an_interval() -> None:
    few = Sizeless("a.few", preference=lambda problem: 2.0 if problem.rows <= 10 else 0.0)
    many = Sizeless("a.many", unsupported=lambda problem: ["odd"] if problem.rows > 40 else [])
    last = Sizeless("a.last", preference=lambda problem: 0.5)
    dispatcher = dispatching(few, many, last)
    for rows in (20, 11, 40, 5, 10, 1, 41, 1000):
        dispatcher.call("softmax", torch.randn(rows, 8))
    assert [len(one.ran) for one in (few, many, last)] == [3, 3, 2]
    assert dispatcher.bound("softmax").misses == 3


def test_explain_tells_the_interval_and_what_limits_it() -> None:
    dispatcher = dispatching(Sizeless(unsupported=lambda problem: ["many"] if problem.rows > 40 else []))
    dispatcher.call("softmax", torch.randn(5, 8))
    for rows in (5, 6):
        told = dispatcher.explain("softmax", torch.randn(rows, 8))
        assert told.reason.endswith("; one plan serves 1 to 40 rows (rows <= 40)")
        assert told.problem is not None
        assert told.problem.rows == rows
    assert dispatcher.bound("softmax").misses == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        {"preference": lambda problem: hash(problem.rows) % 7},
        {"blocks": lambda problem: [1, 2 + problem.rows % 3]},
        {"unsupported": lambda problem: ["odd"] if type(problem.rows) is int and problem.rows == 6 else []},
        {"preference": lambda problem: 1.0 if type(problem.rows) is int else 1 / 0},
    ],
)
def test_what_looks_at_the_rows_in_another_way_serves_them_one_by_one(behaviour: dict[str, Any]) -> None:
    dispatcher = dispatching(Sizeless(**behaviour), native("softmax"))
    for rows in (5, 6, 7, 8):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
        told = dispatcher.explain("softmax", x)
        alone = dispatcher.explain_problem(Problem("softmax", {"rows": rows, "cols": 8, "dtype": "float32"}))
        assert told.implementation == alone.implementation
    assert dispatcher.bound("softmax").misses >= 2


def test_what_is_bound_to_a_shape_serves_it_alone(told: Any) -> None:
    implementation = told("a.one")
    dispatcher = dispatching(implementation)
    for rows in range(1, 2 * MOST_FAILURES):
        dispatcher.call("softmax", torch.randn(rows, 8))
    assert implementation.bound == dispatcher.bound("softmax").misses == 2 * MOST_FAILURES - 1


class Zeros(Sizeless):
    """A product that knows one row apart; its candidate is the same for every weight."""

    op = "gemm_int4"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda outputs, values, scratch: outputs[0].zero_()


def test_a_row_count_that_stands_alone_for_many_weights_leaves_the_others_an_interval() -> None:
    dispatcher = dispatching(Zeros(preference=lambda problem: 1.0 if problem.m == 1 else 2.0))
    for n in range(1, MOST_FAILURES + 3):
        weight = quantize(torch.randn(16 * n, 64, dtype=torch.bfloat16), group_size=32)
        for rows in (1, 5, 6, 7):
            dispatcher.call("gemm_int4", torch.randn(rows, 64, dtype=torch.bfloat16), weight)
        assert dispatcher.bound("gemm_int4").misses == 2 * n, "one for 1 row, one for more"


def test_a_class_that_binds_in_its_own_way_is_bound_to_each_shape() -> None:
    base = compiled("softmax", "cpp.rows")
    bound: list[int] = []

    class Counting(type(base)):  # type: ignore[misc]
        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Any:
            bound.append(problem.rows)
            return super().bind(problem, config, device, built)

    dispatcher = dispatching(Counting())
    for rows in (5, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 40)), x)
    assert bound == [5, 6, 7]


# --- states of a call


def test_misaligned_views_hit_and_are_right() -> None:
    dispatcher = dispatching(compiled("softmax", "cpp.rows"))
    right(dispatcher.call("softmax", x := torch.randn(6, 40)), x)
    for rows in (5, 7, 8):
        shifted = torch.randn(rows * 40 + 1)[1:].view(rows, 40)
        assert shifted.data_ptr() % 16
        right(dispatcher.call("softmax", shifted), shifted)
    assert dispatcher.bound("softmax").misses == 1


def test_who_needs_alignment_gets_no_misaligned_view() -> None:
    fussy = Sizeless(unsupported=lambda problem: [] if problem.traits["aligned"] else ["it is not aligned"])
    dispatcher = dispatching(fussy, native("softmax"))
    for rows in (6, 7, 8):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
        shifted = torch.randn(rows * 8 + 1)[1:].view(rows, 8)
        right(dispatcher.call("softmax", shifted), shifted)
    assert len(fussy.ran) == 3


def test_using_takes_what_it_names_and_leaves_no_interval() -> None:
    usual, other = Sizeless("a.usual"), Sizeless("a.other", preference=lambda problem: -5)
    dispatcher = dispatching(usual, other)
    dispatcher.call("softmax", torch.randn(5, 8))
    with dispatcher.using(softmax="a.other"):
        for rows in (5, 6, 7):
            dispatcher.call("softmax", torch.randn(rows, 8))
    dispatcher.call("softmax", torch.randn(6, 8))
    dispatcher.call("softmax", torch.randn(8, 8))
    assert (len(usual.ran), len(other.ran)) == (3, 3)


def test_a_better_implementation_is_seen_by_the_next_call() -> None:
    usual, better = Sizeless("a.usual"), Sizeless("a.better", preference=lambda problem: 5)
    dispatcher = dispatching(usual)
    for rows in (5, 6):
        dispatcher.call("softmax", torch.randn(rows, 8))
    dispatcher.register(better)
    for rows in (7, 6, 5):
        dispatcher.call("softmax", torch.randn(rows, 8))
    assert (len(usual.ran), len(better.ran)) == (2, 3)


def test_a_row_count_at_which_the_plan_fails_is_answered_by_another() -> None:
    def fault(x: torch.Tensor) -> Exception | None:
        return NotReadyError("not now") if x.shape[0] == 7 else None

    dispatcher = dispatching(Sizeless(fault=fault), native("softmax"))
    for rows in (5, 7, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_row_count_that_the_plan_cannot_run_after_all_puts_it_aside_there() -> None:
    def fault(x: torch.Tensor) -> Exception | None:
        return RuntimeError("no such launch") if x.shape[0] == 7 else None

    sizeless = Sizeless(fault=fault)
    dispatcher = dispatching(sizeless, native("softmax"))
    for rows in (5, 7, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    # at 7 rows: the hit, and once more alone
    assert len(sizeless.ran) == 4
    told = dispatcher.explain("softmax", torch.randn(7, 8))
    assert told.implementation == "torch.native"
    assert "no such launch" in str(told)


def test_memory_that_runs_out_on_a_hit_is_the_callers_to_see() -> None:
    def fault(x: torch.Tensor) -> Exception | None:
        return torch.OutOfMemoryError("full") if x.shape[0] == 7 else None

    sizeless = Sizeless(fault=fault)
    dispatcher = dispatching(sizeless)
    dispatcher.call("softmax", torch.randn(5, 8))
    with pytest.raises(torch.OutOfMemoryError):
        dispatcher.call("softmax", torch.randn(7, 8))
    assert len(sizeless.ran) == 2


def test_an_interval_is_kept_once_however_often_it_is_met() -> None:
    dispatcher = dispatching(native("softmax"))
    dispatcher.call("softmax", torch.randn(5, 8))
    bound = dispatcher.bound("softmax")
    problem = dispatcher.catalog.op("softmax").problem_of({"rows": 6, "cols": 8, "dtype": "float32"})
    warm(dispatcher, [problem], Device.of("cpu"))
    assert len(bound.table.now.anywhere) == 1
    assert "; one plan serves 1 rows or more" in dispatcher.explain("softmax", torch.randn(6, 8)).reason


def test_failures_are_forgotten_when_there_are_many(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MOST_FAILED", 4)
    dispatcher = dispatching(told("a.one"))
    for cols in range(1, 20):
        dispatcher.call("softmax", torch.randn(2, cols))
        assert 1 <= len(dispatcher.bound("softmax").ranges._failures) <= 4


def test_gradients_are_not_lost_at_a_new_row_count() -> None:
    dispatcher = dispatching(native("softmax"))
    dispatcher.call("softmax", torch.randn(5, 8))
    x = torch.randn(6, 8, requires_grad=True)
    y = dispatcher.call("softmax", x)
    (found,) = torch.autograd.grad(y.square().sum(), x)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert not dispatcher.call("softmax", torch.randn(7, 8, requires_grad=True)).requires_grad


def test_empty_and_transposed_tensors_are_right() -> None:
    dispatcher = dispatching(native("softmax"))
    dispatcher.call("softmax", torch.randn(5, 8))
    assert dispatcher.call("softmax", torch.randn(0, 8)).shape == (0, 8)
    right(dispatcher.call("softmax", x := torch.randn(8, 6).t()), x)
    right(dispatcher.call("softmax", x := torch.randn(8)), x)


# --- guards


@pytest.mark.parametrize("make", [native_rows_guard, public_rows_guard])
def test_guards_of_many_row_counts_ask_for_all_but_the_rows(make: Callable[..., Any]) -> None:
    x, weight = torch.randn(2, 3, 8), torch.randn(8)
    check = make((x, weight), (2, 0))
    for good in (torch.randn(5, 4, 8), torch.randn(1, 9, 8), torch.randn(9, 1, 8)):
        assert check(good, weight)
    for bad in (
        torch.randn(2, 3, 9),
        torch.randn(2, 8),
        torch.randn(2, 3, 8).double(),
        torch.randn(2, 3, 16)[..., :8],
        torch.randn(2, 3, 8, requires_grad=True),
    ):
        assert not check(bad, weight)
    assert not check(x, torch.randn(9))
    with torch.inference_mode():
        assert not check(x, weight)


def test_a_spec_tells_row_major_with_sizes_of_one() -> None:
    assert TensorSpec((1, 4), torch.float32, (99, 1)).is_contiguous
    assert not TensorSpec((2, 4), torch.float32, (99, 1)).is_contiguous


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
@pytest.mark.parametrize("method", ["preference", "default", "unsupported", "space"])
@pytest.mark.parametrize("answer", ["raises", None])
def test_who_answers_with_a_fault_leaves_others_their_ranges(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: Any
) -> None:
    def faulty(*_: Any) -> Any:
        if answer is None:
            return None
        raise ValueError("boo")

    usual, broken = Sizeless("a.usual"), Sizeless("a.broken", preference=lambda problem: 9)
    monkeypatch.setattr(broken, method, faulty)
    if method == "space":  # which is asked of winners only
        monkeypatch.setattr(broken, "default", faulty)
    dispatcher = dispatching(usual, broken)
    for rows in (5, 6, 7, 100):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    assert dispatcher.bound("softmax").misses == 1
    assert (len(usual.ran), broken.ran) == (4, [])


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_fault_at_some_row_counts_ends_the_range() -> None:
    def preference(problem: Problem) -> float:
        if problem.rows < 8:
            raise ValueError("boo")
        return 9.0

    usual, moody = Sizeless("a.usual"), Sizeless("a.moody", preference=preference)
    dispatcher = dispatching(usual, moody)
    for rows in (5, 6, 7, 8, 9, 100, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    assert (len(usual.ran), len(moody.ran)) == (4, 3)
    assert dispatcher.bound("softmax").misses == 2


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_fault_that_only_numbers_have_gives_the_range_up() -> None:
    def preference(problem: Problem) -> Any:
        return None if type(problem.rows) is int and problem.rows == 5 else 9.0

    usual, sly = Sizeless("a.usual"), Sizeless("a.sly", preference=preference)
    dispatcher = dispatching(usual, sly)
    for rows in (5, 6, 7):
        right(dispatcher.call("softmax", x := torch.randn(rows, 8)), x)
    assert (len(usual.ran), len(sly.ran)) == (1, 2)
