"""An op whose tolerance accepts what nobody computed is refused by check_op and before it is first tuned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contract import Op, Tolerance
from registry.contracts import BOX, GEMM_INT4, RMS_NORM, SOFTMAX, SQUARE
from registry.correctness import tolerance_check as contract_check
from registry.correctness import tolerance_notes as contract_notes
from registry.correctness.tolerance_check import blind_spots, refuse_blind, refuse_unseen
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import CheckError, InvalidArgumentError, InvalidDefinitionError
from registry.implementation import Implementation, Run
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing import check_op
from registry.tuner.run import tune

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
UNSEEN: Mapping[str, Value] = {"n": 12_345, "dtype": "float32"}
"""Dimensions that are none of square's examples."""


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(folder))
    return folder


def handy(op: Op) -> tuple[Mapping[str, Value], ...]:
    """Its small examples: who is blind on all is looked at on all."""
    return tuple(dims for dims in op.examples if op.floor(op.problem_of(dims)).bytes <= 64 << 10)


def with_tolerance(op: Op, rtol: float, atol: float) -> Op:
    """The op under another name, with its small examples and the same tolerance in every dtype."""
    name = f"acme::{op.name}"
    tolerance = Tolerance(
        dict.fromkeys(op.tolerance.rtol, rtol), dict.fromkeys(op.tolerance.atol, atol), op.tolerance.scale
    )
    schema = op.schema.replace(op.name, name, 1)
    return replace(op, name=name, schema=schema, tolerance=tolerance, examples=handy(op))


def without_examples(op: Op, **changes: Any) -> Op:
    """Another op like it, of which nothing is known before its first problem."""
    return replace(op, examples=(), **changes)


class Looks:
    """Every draw of inputs: problem, kind and device. It is made on the CPU, or raises ``faults[device]``."""

    def __init__(self) -> None:
        self.seen: list[tuple[Problem, str, torch.device]] = []
        self.faults: dict[torch.device, Exception] = {}

    def drawn(self, op: Op, problem: Problem, kind: str, seed: int, device: torch.device) -> tuple[Any, ...]:
        self.seen.append((problem, kind, device))
        if device in self.faults:
            raise self.faults[device]
        return op.parsed.bind(op.inputs(problem, kind, torch.Generator().manual_seed(seed)), {})

    @property
    def devices(self) -> list[torch.device]:
        """In order, each once."""
        return list(dict.fromkeys(device for _, _, device in self.seen))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Looks:
    made = Looks()
    monkeypatch.setattr(contract_check, "_drawn", made.drawn)
    return made


def examples(op: Op) -> list[Problem]:
    return [op.problem_of(dims) for dims in op.examples]


class Squaring(Implementation):
    """acme::blind by torch."""

    op = "acme::blind"
    name = "acme.square"
    device_types = frozenset({"cpu"})
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda outputs, values, scratch: torch.square(*values)


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
@pytest.mark.few(12)
def test_the_ops_in_the_box_tell_right_from_nothing(op: Op) -> None:
    assert blind_spots(op, examples(op)) == []


@pytest.mark.parametrize("op", [SQUARE, SOFTMAX, RMS_NORM, GEMM_INT4], ids=lambda op: op.name)
@pytest.mark.parametrize(("rtol", "atol"), [(1.0, 0.0), (0.0, 1e30)])
@pytest.mark.few(2)
def test_a_tolerance_that_accepts_zeros_is_refused(op: Op, rtol: float, atol: float) -> None:
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y") as raised:
        refuse_blind(with_tolerance(op, rtol, atol))
    drawn = {"float16", "bfloat16"} if op is GEMM_INT4 else set(op.tolerance.rtol)
    assert all(dtype in str(raised.value) for dtype in drawn)


def constant_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.full((problem.n,), 3.0, dtype=problem.torch_dtype),)


def test_inputs_that_make_every_output_the_same_are_refused() -> None:
    op = replace(with_tolerance(SQUARE, 1e-6, 0.0), inputs=constant_inputs, kinds=("normal",))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-constant output") as raised:
        refuse_blind(op)
    assert "the output of a previous call" in str(raised.value)


def test_a_tolerance_that_accepts_the_output_of_a_previous_call_is_refused() -> None:
    def near_three(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        ramp = torch.arange(problem.n, dtype=torch.float64)
        noise = torch.randn(problem.n, generator=generator, dtype=torch.float64)
        return ((ramp + 1e-3 * noise).to(problem.torch_dtype),)

    op = replace(with_tolerance(SQUARE, 0.0, 10.0), inputs=near_three, kinds=("normal",))
    (spot,) = blind_spots(op, [op.problem_of({"n": 1000, "dtype": "float32"})])
    assert "the output of a previous call" in spot


def test_one_dtype_that_is_blind_is_enough() -> None:
    rtol: Mapping[str, float] = {**SQUARE.tolerance.rtol, "bfloat16": 2.0}
    op = replace(SQUARE, tolerance=replace(SQUARE.tolerance, rtol=rtol), examples=handy(SQUARE))
    assert blind_spots(op, examples(op)) == [
        "its tolerance accepts an all-zero output as y (bfloat16) on every kind of inputs "
        "(normal, outliers, spike_last, constant, special)"
    ]


def test_an_op_of_a_plugin_is_looked_at_before_it_is_tuned_and_not_when_it_is_loaded(
    tmp_path: Path, looks: Looks
) -> None:
    file = tmp_path / "blind.py"
    file.write_text(
        "from dataclasses import replace\n"
        "import registry\n"
        "from registry.contracts import SQUARE\n"
        "TOLERANCE = replace(SQUARE.tolerance, atol=dict.fromkeys(SQUARE.tolerance.atol, 1e30))\n"
        "@registry.defines\n"
        "def ops():\n"
        "    schema = 'acme::blind(Tensor x) -> Tensor y'\n"
        "    few = SQUARE.examples[:2]\n"
        "    return [replace(SQUARE, name='acme::blind', schema=schema, tolerance=TOLERANCE, examples=few)]\n"
    )
    catalog = Catalog(entry_points=())
    catalog.load_file(file)
    assert not looks.seen
    op = catalog.op("acme::blind")
    catalog.register(Squaring())
    problem, database = op.problem_of({"n": 100, "dtype": "float32"}), tmp_path / "tuning.db"
    with pytest.raises(InvalidDefinitionError, match="its tolerance accepts an all-zero output"):
        tune([problem], catalog=catalog, device=Device.of("cpu"), database=str(database))
    assert looks.seen
    assert not database.exists()
    with pytest.raises(CheckError, match="its tolerance accepts an all-zero output"):
        check_op(op)


def test_what_was_found_right_is_not_looked_at_again(own_cache: Path) -> None:
    looked: list[Problem] = []

    def counted(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        drawn = SQUARE.inputs(problem, kind, generator)
        if drawn[0].device.type != "meta":  # a problem is posed by inputs without memory
            looked.append(problem)
        return drawn

    op = replace(SQUARE, name="acme::square", schema="acme::square(Tensor x) -> Tensor y", inputs=counted)
    assert refuse_blind(op)
    first = len(looked)
    assert refuse_blind(op)
    refuse_unseen(op, op.problem_of(UNSEEN), CPU)
    assert len(looked) == first > 0
    assert refuse_blind(replace(op, tolerance=replace(op.tolerance, rtol={**op.tolerance.rtol, "float32": 1e-6})))
    assert len(looked) > first


def fails(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    raise RuntimeError("no inputs today")


def fails_on_examples(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    if problem.n != UNSEEN["n"]:
        raise RuntimeError("no inputs today")
    return SQUARE.inputs(problem, kind, generator)


def test_an_op_that_fails_on_its_own_examples_is_left_to_check_op() -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails)
    assert blind_spots(op, examples(op)) == []
    Catalog(entry_points=()).define(op)
    with pytest.raises(CheckError, match="no inputs today"):
        check_op(op)


def test_what_could_not_be_looked_at_is_not_noted_as_right(own_cache: Path) -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails)
    assert not refuse_blind(op)
    assert not [path for path in own_cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "changes", [{"inputs": fails_on_examples}, {"examples": ()}, {"examples": ({"nonsense": 1},)}], ids=lambda it: [*it]
)
def test_an_op_whose_examples_showed_nothing_is_looked_at_on_the_first_problem(changes: Mapping[str, Any]) -> None:
    right, blind = (replace(with_tolerance(SQUARE, rtol, 0.0), **changes) for rtol in (1e-3, 1.0))
    for op in (right, blind):
        Catalog(entry_points=()).define(op)
    refuse_unseen(right, right.problem_of(UNSEEN), CPU)
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y"):
        refuse_unseen(blind, blind.problem_of(UNSEEN), CPU)


def test_one_example_that_shows_something_suffices() -> None:
    op = replace(with_tolerance(SQUARE, 1e-3, 0.0), inputs=fails_on_examples)
    op = replace(op, examples=(*op.examples, UNSEEN))
    assert refuse_blind(op)
    # it would raise if it looked: other problems have no inputs
    refuse_unseen(op, op.problem_of({"n": 5, "dtype": "float32"}), CPU)


def softmax(op: Op, rows: int, cols: int, dtype: str = "float32") -> Problem:
    return op.problem_of({"rows": rows, "cols": cols, "dtype": dtype})


def test_a_first_problem_is_looked_at_where_it_is_tuned_and_with_few_rows(looks: Looks) -> None:
    op = without_examples(SOFTMAX)
    refuse_unseen(op, softmax(op, 4096, 1000), GPU)
    assert looks.devices == [GPU]
    assert {problem.dims["rows"] for problem, _, _ in looks.seen} == {32}
    assert {problem.dims["cols"] for problem, _, _ in looks.seen} == {1000}


def test_rows_are_not_cut_down_to_one() -> None:
    op = without_examples(SOFTMAX)
    assert contract_check._smaller(op, softmax(op, 100, 10_000_000)).rows == 12
    assert contract_check._smaller(op, softmax(op, 3, 10_000_000)).rows == 3


def test_dimensions_are_cut_down_as_far_as_the_op_allows() -> None:
    def multiple_of_1000(problem: Problem) -> None:
        if problem.rows % 1000:
            raise InvalidArgumentError("rows must be a multiple of 1000")

    op = without_examples(SOFTMAX, check=multiple_of_1000)
    assert contract_check._smaller(op, softmax(op, 12_000, 1000)).rows == 3000


def test_the_cpu_is_asked_only_where_the_device_fails(looks: Looks) -> None:
    op = without_examples(with_tolerance(SOFTMAX, 1.0, 0.0))
    looks.faults[GPU] = RuntimeError("not on this GPU")
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output"):
        refuse_unseen(op, softmax(op, 4096, 1000), GPU)
    assert looks.devices == [GPU, CPU]
    # what has failed on a few rows may need them all; the CPU would take too long for those
    assert {(problem.rows, device) for problem, _, device in looks.seen} == {(32, GPU), (4096, GPU), (32, CPU)}


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    ],
    ids=["full", "full to Triton", "broken"],
)
def test_a_gpu_that_is_full_or_broken_is_not_the_ops_fault(looks: Looks, fault: Exception) -> None:
    op = without_examples(SOFTMAX)
    looks.faults[GPU] = looks.faults[CPU] = fault
    with pytest.raises(type(fault), match=r"out of memory|illegal memory"):
        refuse_unseen(op, softmax(op, 8, 100), GPU)
    refuse_unseen(op, softmax(op, 8, 100), CPU)
    looks.faults.clear()
    looks.seen.clear()
    refuse_unseen(op, softmax(op, 8, 100), GPU)
    assert looks.devices == [GPU]


@pytest.mark.parametrize("cache", ["there", "none"])
def test_an_op_that_was_found_right_is_not_looked_at_again(
    looks: Looks, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cache == "none":
        monkeypatch.setattr(contract_notes, "_note", lambda op, shown_by: None)
    op = without_examples(SOFTMAX)
    refuse_unseen(op, softmax(op, 8, 100), CPU)
    assert looks.seen
    looks.seen.clear()
    refuse_unseen(op, softmax(op, 16, 200), CPU)
    assert not looks.seen
    # as another process has it
    refuse_unseen(replace(op), softmax(op, 16, 300), CPU)
    assert bool(looks.seen) == (cache == "none")


@pytest.mark.parametrize("of_its_own", [True, False], ids=["examples", "no examples"])
def test_an_op_that_fails_everywhere_is_looked_at_once(looks: Looks, of_its_own: bool) -> None:
    op = with_tolerance(SQUARE, 1e-3, 0.0) if of_its_own else without_examples(SQUARE)
    looks.faults[CPU] = RuntimeError("no inputs today")
    for _ in range(2):
        refuse_unseen(op, op.problem_of(UNSEEN), CPU)
    assert len(looks.seen) == len(set(looks.seen)) > 0


def test_a_dtype_that_is_blind_is_refused_after_another_was_found_right(looks: Looks) -> None:
    rtol = {**SOFTMAX.tolerance.rtol, "bfloat16": 2.0}
    op = without_examples(SOFTMAX, tolerance=replace(SOFTMAX.tolerance, rtol=rtol))
    refuse_unseen(op, softmax(op, 8, 100), CPU)
    with pytest.raises(InvalidDefinitionError, match=r"accepts an all-zero output as y \(bfloat16\)"):
        refuse_unseen(op, softmax(op, 8, 100, "bfloat16"), CPU)


def test_a_problem_whose_right_output_is_constant_decides_nothing(looks: Looks) -> None:
    right = without_examples(SOFTMAX)
    refuse_unseen(right, softmax(right, 64, 1), CPU)
    looks.seen.clear()
    refuse_unseen(right, softmax(right, 64, 1), CPU)
    assert not looks.seen
    # one that accepts any probability, which only shows where there are several
    blind = without_examples(with_tolerance(SOFTMAX, 0.0, 0.5))
    refuse_unseen(blind, softmax(blind, 64, 1), CPU)
    for _ in range(2):
        with pytest.raises(InvalidDefinitionError, match="accepts an all-constant output"):
            refuse_unseen(blind, softmax(blind, 64, 100), CPU)


def test_where_the_smaller_problem_is_degenerate_the_whole_one_is_looked_at(looks: Looks) -> None:
    def late_rows(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x * (torch.arange(len(x))[:, None] >= 50_000)

    blind = without_examples(with_tolerance(SOFTMAX, 1e9, 0.0), reference=late_rows)
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output"):
        refuse_unseen(blind, softmax(blind, 60_000, 8), CPU)
    assert len({problem for problem, _, _ in looks.seen}) == 2


def third(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 1 / 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_right_output_is_constant_up_to_rounding(looks: Looks, dtype: str) -> None:
    op = without_examples(SQUARE, reference=third)
    refuse_unseen(op, op.problem_of({"n": 100, "dtype": dtype}), CPU)
    assert looks.seen


def test_zeros_in_place_of_a_constant_are_refused(looks: Looks) -> None:
    op = without_examples(with_tolerance(SOFTMAX, 1.0, 0.0))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output"):
        refuse_unseen(op, softmax(op, 64, 1), CPU)


def test_outputs_that_are_constant_because_inputs_are_do_not_excuse_a_tolerance(own_cache: Path) -> None:
    op = without_examples(SQUARE, inputs=constant_inputs, kinds=("normal",))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-constant output"):
        refuse_unseen(op, op.problem_of(UNSEEN), CPU)


def test_a_large_example_is_left_alone_where_a_handy_one_shows_as_much(looks: Looks) -> None:
    large, handy = ({"n": n, "dtype": "float32"} for n in (60_000_000, 1001))
    op = without_examples(SQUARE)
    op = replace(op, examples=(large, handy))
    refuse_unseen(op, op.problem_of({"n": 7, "dtype": "float32"}), CPU)
    assert {problem.n for problem, _, _ in looks.seen} == {1001}


def test_what_an_op_writes_to_is_judged_like_an_output(own_cache: Path) -> None:
    changes: dict[str, Any] = {
        "schema": "acme::square(Tensor(a!) x) -> ()", "reference": square_in_place, "fake": lambda x: None
    }  # fmt: skip
    assert refuse_blind(replace(with_tolerance(SQUARE, 1e-3, 0.0), **changes))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as x"):
        refuse_blind(replace(with_tolerance(SQUARE, 1.0, 0.0), **changes))


def square_in_place(x: torch.Tensor) -> None:
    x.square_()


def reset(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
    y = x * x + acc
    acc.zero_()
    return y


def with_accumulator(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    (x,) = SQUARE.inputs(problem, kind, generator)
    return x, torch.randn(problem.n, generator=generator).to(problem.torch_dtype)


def mutating(op: Op, name: str, reference: Any, inputs: Any) -> Op:
    """Square with a second argument, ``acc``, that it mutates."""
    return replace(
        op, name=f"acme::{name}", schema=f"acme::{name}(Tensor x, Tensor(a!) acc) -> Tensor y", reference=reference,
        inputs=inputs, fake=lambda x, acc: torch.empty_like(x), backward=None,
    )  # fmt: skip


def test_an_argument_that_is_reset_may_be_all_zeros(own_cache: Path) -> None:
    def zero_too(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
        return reset(x, acc) * 0

    op = replace(SQUARE, examples=handy(SQUARE))
    Catalog(entry_points=()).define(mutating(op, "take_acc", reset, with_accumulator))
    assert blind_spots(mutating(op, "take_acc", reset, with_accumulator), examples(op)) == []
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y") as raised:
        refuse_blind(mutating(op, "zeros", zero_too, with_accumulator))
    assert "as acc" not in str(raised.value)


def test_an_argument_that_is_not_reset_may_not(own_cache: Path) -> None:
    def add(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
        acc.add_(x)
        return x * x

    loose = replace(SQUARE.tolerance, atol=dict.fromkeys(SQUARE.tolerance.atol, 1e30))
    op = replace(SQUARE, examples=handy(SQUARE), tolerance=loose)
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as acc"):
        refuse_blind(mutating(op, "add", add, with_accumulator))


def test_an_argument_that_is_left_all_nan_shows_nothing(own_cache: Path) -> None:
    def spoil(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
        acc.fill_(torch.nan)
        return x * x

    op = replace(SQUARE, examples=handy(SQUARE))
    assert refuse_blind(mutating(op, "spoil", spoil, with_accumulator))
    only = mutating(op, "spoil_only", lambda x, acc: spoil(x, acc)[:0], with_accumulator)
    assert not refuse_blind(only)


def infinite_first(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    (x,) = SQUARE.inputs(problem, "normal", generator)
    return (torch.full_like(x, torch.inf) if kind == "first" else x,)


def failing_first(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    if kind == "first":
        raise RuntimeError("none of that kind")
    return SQUARE.inputs(problem, "normal", generator)


@pytest.mark.parametrize("inputs", [infinite_first, failing_first])
def test_who_was_not_asked_about_an_old_output_has_not_accepted_it(inputs: Any, own_cache: Path) -> None:
    changes: dict[str, Any] = {"inputs": inputs, "kinds": ("first", "normal")}
    assert refuse_blind(replace(with_tolerance(SQUARE, 1e-3, 0.0), **changes))
    with pytest.raises(InvalidDefinitionError, match="accepts an all-zero output as y") as raised:
        refuse_blind(replace(with_tolerance(SQUARE, 1.0, 0.0), **changes))
    assert "previous" not in str(raised.value)


def test_a_case_that_fails_midway_is_no_evidence(own_cache: Path) -> None:
    op = replace(
        with_tolerance(SQUARE, 1e-3, 0.0), schema="acme::square(Tensor(a!) x) -> ()", reference=lambda x: x.square_()
    )
    assert not refuse_blind(op)
    assert not [path for path in own_cache.rglob("*") if path.is_file()]
    with pytest.raises(CheckError, match=r"returned 1 output \(.*: return None\)"):
        check_op(op)


EXACT_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)


def random_of(dtype: torch.dtype) -> Any:
    """Inputs: square's, and random numbers of a dtype."""

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        (x,) = SQUARE.inputs(problem, "normal", generator)
        return x, torch.randint(0, 100, (50,), generator=generator).remainder(2 if dtype == torch.bool else 100).to(
            dtype
        )

    return inputs


def flip(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
    """The square of x; acc is turned round."""
    acc.copy_(acc[torch.arange(len(acc)).flip(0)])
    return x * x


@pytest.mark.parametrize("dtype", [*EXACT_DTYPES, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_an_argument_of_any_dtype_is_evidence(dtype: torch.dtype, own_cache: Path) -> None:
    name = str(dtype).removeprefix("torch.")
    tolerance = Tolerance(
        {**SQUARE.tolerance.rtol, name: 0.13}, {**SQUARE.tolerance.atol, name: 1e-3}, SQUARE.tolerance.scale
    )
    op = mutating(replace(SQUARE, examples=handy(SQUARE), tolerance=tolerance), "flip", flip, random_of(dtype))
    problem = op.problem_of({"n": 1000, "dtype": "float32"})
    results = contract_check._seen(op, [problem], CPU)
    assert {key: seen.shows for key, seen in results.items()} == {("y", "float32"): True, ("acc", name): True}
    assert blind_spots(op, [problem]) == []


@pytest.mark.parametrize("part", ["check", "floor"])
def test_whatever_an_op_raises_of_a_smaller_problem_stops_no_session(part: str, looks: Looks) -> None:
    def check(problem: Problem) -> None:
        if problem.n % 1_000_003:
            raise ValueError("n must be a multiple of 1000003")

    def floor(problem: Problem) -> Any:
        check(problem)
        return SQUARE.floor(problem)

    op = without_examples(SQUARE, **{part: check if part == "check" else floor})
    refuse_unseen(op, op.problem_of({"n": 1_000_003, "dtype": "float32"}), CPU)
    assert {problem.n for problem, _, _ in looks.seen} == {1_000_003}


def test_a_floor_that_fails_is_left_to_check_op(looks: Looks) -> None:
    def floor(problem: Problem) -> Any:
        raise ValueError("no floor")

    op = without_examples(SQUARE, floor=floor)
    refuse_unseen(op, op.problem_of(UNSEEN), CPU)
    assert refuse_blind(replace(op, examples=(UNSEEN,)))
    with pytest.raises(CheckError, match="no floor"):
        check_op(op, problems=[UNSEEN])


def test_an_output_in_a_dtype_is_asked_about_though_another_result_has_that_dtype(own_cache: Path) -> None:
    def add(x: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
        acc.add_(1)
        return x * x

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        return *SQUARE.inputs(problem, kind, generator), torch.randn(10, generator=generator).bfloat16()

    tolerance = replace(SQUARE.tolerance, rtol={**SQUARE.tolerance.rtol, "bfloat16": 1e-2, "float32": 1e-6})
    few = tuple({"n": 1000, "dtype": dtype} for dtype in ("bfloat16", "float32"))
    op = mutating(replace(SQUARE, examples=few, tolerance=tolerance), "add", add, inputs)
    assert ("y", "bfloat16") in contract_check._seen(op, examples(op), CPU)


def places(x: torch.Tensor) -> torch.Tensor:
    """The places of x in ascending order."""
    return x.argsort(-1)


def in_range(
    problem: Problem, values: Mapping[str, Any], results: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Forgets to look at what lies at the places."""
    if bool(((results["y"] < 0) | (results["y"] >= problem.n)).any()):
        yield "a place is outside"


def all_there(
    problem: Problem, values: Mapping[str, Any], results: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    """Each place once, though not in which order."""
    if not results["y"].sort().values.equal(torch.arange(problem.n)):
        yield "a place is missing"


def in_order(
    problem: Problem, values: Mapping[str, Any], results: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    if not values["x"][results["y"]].equal(values["x"].sort().values):
        yield "the order is another"


def failing(*_: Any) -> Any:
    raise IndexError("this comparator knows right results only")


@pytest.mark.parametrize(
    ("compare", "accepted"),
    [
        (in_range, ["an all-zero output", "the output of a previous call with other inputs"]),
        (all_there, ["the output of a previous call with other inputs"]),
        (in_order, []),
        (failing, []),
    ],
)
def test_a_result_under_an_ops_own_compare_is_looked_at_too(compare: Any, accepted: list[str]) -> None:
    op = replace(
        SQUARE,
        name="acme::places",
        schema="acme::places(Tensor x) -> Tensor y",
        reference=places,
        compare={"y": compare},
        kinds=("normal",),
        examples=({"n": 9, "dtype": "float32"}, {"n": 33, "dtype": "float32"}),
    )
    found = blind_spots(op, examples(op))
    where = {
        "an all-zero output": "every kind of inputs (normal)",
        "the output of a previous call with other inputs": "the kind of inputs that is timed, the first (normal)",
    }
    assert found == [f"its compare accepts {what} as y (int64) on {where[what]}" for what in accepted]
    if accepted:
        with pytest.raises(InvalidDefinitionError, match="its compare accepts"):
            refuse_blind(op)
