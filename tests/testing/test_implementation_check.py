"""``check_implementation`` accepts what is right and names each thing that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contracts import EMBEDDING, GELU, RMS_NORM, SOFTMAX, SQUARE
from registry.correctness.poisoned_layouts import LAYOUTS
from registry.device import Device
from registry.errors import CheckError, CompileError, DeviceError
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, Value
from registry.space import Config, Space
from registry.testing import Report, check_implementation

from ..misreading import dense_columns, leading_dimension

CPU = frozenset({"cpu"})


class BlockedSquare(Implementation):
    """Right: a block of elements at a time."""

    op = "square"
    name = "test.blocked"
    device_types = CPU

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if not problem.traits["contiguous"]:
            yield "needs contiguous tensors"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=[64, 1000])

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        block = int(config["block"])

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (y,), (x,) = outputs, arguments
            for start in range(0, problem.n, block):
                self.compute(y.view(-1)[start : start + block], x.view(-1)[start : start + block])

        return run

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)


class FunctionalSquare(Implementation):
    """Functional code: returns what ``compute`` returns."""

    op = "square"
    name = "test.functional"
    device_types = CPU
    returns_outputs = True

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._compute = compute

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        return lambda outputs, arguments, scratch: self._compute(*arguments)


SMALL: tuple[dict[str, Value], ...] = ({"n": 7, "dtype": "float32"}, {"n": 1000, "dtype": "bfloat16"})


def told(line: str) -> str:
    """The layout of a line, and "after" where the problem follows upon another size."""
    words = line.split(")")[1].split()
    return " ".join([*words[: words.index("after")], "after"]) if "after" in words else words[0]


def failure(implementation: Implementation, problems: Iterable[Mapping[str, Any]] = SMALL) -> str:
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, SQUARE, problems=tuple(problems), configs="all")
    return str(raised.value)


def test_a_right_implementation_passes_in_every_layout_it_supports() -> None:
    op = replace(SQUARE, examples=tuple(dims for dims in SQUARE.examples if int(dims["n"]) <= 1000))
    report = check_implementation(BlockedSquare(), op, configs="all")
    assert isinstance(report, Report)
    assert report.ok
    assert any("unaligned" in line for line in report.checked)
    assert any("strided" in line and "needs contiguous tensors" in line for line in report.skipped)
    # 10 examples with two blocks, at a smaller, a larger and an otherwise divisible size; one element, in 3 examples,
    # is contiguous in any layout, and has no smaller size
    assert Counter(map(told, report.checked)) == {
        "contiguous": 20, "unaligned": 20, "strided": 6, "after": 2 * (3 * 10 - 3)
    }  # fmt: skip
    assert 0 < sum(dims["n"] == 1 for dims in op.examples) < len(op.examples)
    assert "0 failed" in str(report)


def test_by_default_only_the_default_configuration_is_checked() -> None:
    report = check_implementation(BlockedSquare(), SQUARE, problems=SMALL)
    assert Counter(map(told, report.checked)) == {"contiguous": 2, "unaligned": 2, "after": 6}


def test_right_functional_code_passes_strided_too() -> None:
    report = check_implementation(FunctionalSquare(torch.square), SQUARE, problems=SMALL)
    assert Counter(map(told, report.checked)) == {
        "contiguous": 2, "unaligned": 2, "strided": 2, "scalar-dense": 2, "after": 6
    }  # fmt: skip


class WrongWhereUntuned(FunctionalSquare):
    """Other code for sizes that nobody tuned, and that code is wrong."""

    name = "test.untuned"

    def bind_untuned(self, *_: object) -> Run:
        return lambda outputs, arguments, scratch: arguments[0] * 1.5


def test_the_code_of_untuned_sizes_is_checked_at_other_sizes() -> None:
    lines = [line for line in failure(WrongWhereUntuned(torch.square)).splitlines() if "test.untuned" in line]
    assert any(" after n=7" in line for line in lines)
    assert all(" after " in line for line in lines if "n=" in line)


class Rows(FunctionalSquare):
    """The softmax of rows."""

    op = "softmax"


ROWS: list[dict[str, Value]] = [{"rows": 5, "cols": 33, "dtype": "float32"}]


def test_what_has_rows_is_checked_as_columns_of_a_wider_tensor_too() -> None:
    report = check_implementation(Rows(torch.softmax), SOFTMAX, problems=ROWS)
    larger = ["sliced after", "transposed after", "expanded-dense after"]
    at_other_sizes = ["after", "after", *larger, "after", *larger]
    assert [*map(told, report.checked)] == [*LAYOUTS[:5], "expanded-dense", "scalar-dense", *at_other_sizes]


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Takes the gap between elements into account, and no other."""
    step = x.stride(-1)
    return x.as_strided(x.shape, (x.shape[-1] * step, step))


def one_gap(x: torch.Tensor) -> torch.Tensor:
    """Right for dense rows, however far apart they are."""
    return x.as_strided(x.shape, (x.stride(0), 1))


@pytest.mark.parametrize(
    ("read", "layouts"),
    [
        # of row-major inputs, those that are not, but fill their memory
        (dense_rows, {"contiguous", "sliced", "transposed", "strided", "expanded-dense"}),
        (one_gap, {"contiguous", "transposed", "strided", "scalar-dense"}),
        (leading_dimension, {"expanded-dense"}),
        (dense_columns, {"scalar-dense"}),
    ],
)
def test_who_misreads_a_layout_is_refused(read: Callable[[torch.Tensor], torch.Tensor], layouts: set[str]) -> None:
    def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.softmax(read(x) if x.dim() == 2 and dim == -1 else x, dim)

    with pytest.raises(CheckError) as raised:
        check_implementation(Rows(softmax), SOFTMAX, problems=ROWS)
    failed = [line for line in str(raised.value).splitlines() if line.startswith("  failed")]
    assert {line.split(")")[1].split()[0] for line in failed} == layouts


class TailForgotten(BlockedSquare):
    """Writes whole blocks of 64 only."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        whole = len(x) // 64 * 64
        torch.mul(x[:whole], x[:whole], out=y[:whole])


class PastTheEnd(BlockedSquare):
    """Writes a whole vector of 4 where less is left."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        super().compute(y, x)
        y.as_strided((len(y) + 1,), (1,), y.storage_offset())[-1] = 0


class ReadsPastTheEnd(BlockedSquare):
    """Lets the element after the last take part."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)
        y[-1] += 0 * x.as_strided((len(x) + 1,), (1,), x.storage_offset())[-1]


class ChangesItsInput(BlockedSquare):
    """Squares in place first."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        x.mul_(x)
        y.copy_(x)


class Unsteady(BlockedSquare):
    """Alternates between two roundings."""

    runs = 0

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)
        self.runs += 1
        y[:1] *= 1 + (self.runs % 2) * 2.0**-10


class Checksum(BlockedSquare):
    """Does nothing where the input's sum is the last one for these addresses, and the output looks written."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int], float] = {}

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        key, total = (y.data_ptr(), x.data_ptr()), float(x.nan_to_num(0.0, 1.0, 1.0).double().sum())
        if self._sums.get(key) != total or bool(y[0].isnan()):
            torch.mul(x, x, out=y)
        self._sums[key] = total


class LooksAtSome(BlockedSquare):
    """Writes an element only where the output is NaN."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.where(y.isnan(), x * x, y, out=y)


class WritesWhatIsSmall(BlockedSquare):
    """Leaves other elements alone, once they are written."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.where(y.isnan() | (x.abs() < 1), x * x, y, out=y)


class ForgetsTheFirst(BlockedSquare):
    """Writes the first element of a block where it is NaN only."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x[1:], x[1:], out=y[1:])
        torch.where(y[:1].isnan(), x[:1] * x[:1], y[:1], out=y[:1])


class KnowsVersions(BlockedSquare):
    """Writes again what it wrote for the address and version of an input."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        _, left = self._known.setdefault((x.data_ptr(), x._version), (x, x * x))  # which keeps the address taken
        y.copy_(left)


class WritesBesideItsInput(BlockedSquare):
    """Writes to what follows its input."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        super().compute(y, x)
        x.as_strided((1,), (1,), int(x.storage_offset()) + len(x)).fill_(1.0)


def one_buffer_an_address() -> FunctionalSquare:
    buffers: dict[int, torch.Tensor] = {}

    def square(x: torch.Tensor) -> torch.Tensor:
        buffer = buffers.setdefault(x.data_ptr(), torch.empty(x.shape, dtype=x.dtype))
        # memory that was freed is used again for inputs of other sizes
        return torch.mul(x, x, out=buffer) if buffer.shape == x.shape and buffer.dtype == x.dtype else x * x

    return FunctionalSquare(square)


class LowPrecision(BlockedSquare):
    """Computes in bfloat16 whatever the dtype."""

    def compute(self, y: torch.Tensor, x: torch.Tensor) -> None:
        y.copy_(x.bfloat16() * x.bfloat16())


@pytest.mark.parametrize(
    ("implementation", "expected"),
    [
        (TailForgotten(), "normal inputs: y[0] is nan"),
        (PastTheEnd(), "it writes outside its outputs"),
        (ReadsPastTheEnd(), "is nan, expected"),
        (ChangesItsInput(), "it changes its input x"),
        (Unsteady(), "two runs on the same inputs differ"),
        (LowPrecision(), "times what is allowed"),
        (Checksum(), "it leaves its output alone when called again on the same input"),
        (LooksAtSome(), "it leaves its output alone when called again on the same input"),
        (WritesWhatIsSmall(), "called again on the same input: y["),
        (ForgetsTheFirst(), "called again on the same input: y[0]"),
        (KnowsVersions(), "called again after its inputs have changed at their addresses: y["),
        (WritesBesideItsInput(), "it writes outside its argument x"),
        (one_buffer_an_address(), "two calls return the same memory: the second overwrites the first's result"),
        (FunctionalSquare(lambda x: x), "y shares memory with an argument"),
        (FunctionalSquare(lambda x: x.double() ** 2), "y is float64, expected"),
        (FunctionalSquare(lambda x: x[:-1] ** 2), "has shape"),
        (FunctionalSquare(lambda x: torch.zeros(x.shape[0], 2).to(x)[:, 0]), "has strides (2,), expected (1,)"),
        (FunctionalSquare(lambda x: torch.tensor(x.tolist()[99])), "raised IndexError"),
        (FunctionalSquare(torch.zeros_like), "times what is allowed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Implementation) else str(value)[:30],
)
def test_a_wrong_implementation_is_refused_with_the_fault(implementation: Implementation, expected: str) -> None:
    assert expected in failure(implementation, SMALL[:1])


def test_an_implementation_that_declares_itself_unsteady_may_be() -> None:
    class UnsteadyGelu(FunctionalSquare):
        op = "gelu"
        runs = 0

        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> torch.Tensor:
                self.runs += 1
                return torch.nn.functional.gelu(arguments[0], approximate="tanh") + self.runs % 2 * 1e-7

            return run

    problems: list[dict[str, Value]] = [{"n": 7, "dtype": "float32", "approximate": "tanh"}]
    unsteady = UnsteadyGelu(torch.square)
    with pytest.raises(CheckError, match="two runs on the same inputs differ"):
        check_implementation(unsteady, GELU, problems=problems)
    unsteady.deterministic = False
    assert check_implementation(unsteady, GELU, problems=problems).ok


def test_every_fault_is_told_not_the_first_alone() -> None:
    text = failure(TailForgotten())
    assert all(kind in text for kind in SQUARE.kinds if kind != "special")
    assert all(str(SQUARE.problem_of(dims)) in text for dims in SMALL)


def test_a_default_outside_the_space_is_a_failure() -> None:
    class Astray(BlockedSquare):
        def default(self, problem: Problem, device: Device) -> Config:
            return {"block": 65}

    assert "its default is not in its space: block=65 is not one of [64, 1000]" in failure(Astray())


def test_an_empty_space_is_a_failure() -> None:
    class Empty(BlockedSquare):
        def space(self, problem: Problem, device: Device) -> Space:
            return Space(block=[64]).require("never", lambda config: False)

    assert "its space has no valid configuration" in failure(Empty())


def test_the_wrong_op_is_a_failure() -> None:
    with pytest.raises(CheckError, match="it implements 'square', not 'softmax'"):
        check_implementation(BlockedSquare(), SOFTMAX, problems=[{"rows": 2, "cols": 3, "dtype": "float32"}])


def test_checking_nothing_is_a_failure_that_tells_the_reasons() -> None:
    class Never(BlockedSquare):
        def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
            return ("too long", "too short")

    with pytest.raises(CheckError, match=r"nothing was checked(.|\n)*too long; too short"):
        check_implementation(Never(), SQUARE, problems=SMALL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_said_so() -> None:
    class Gpu(BlockedSquare):
        device_types = frozenset({"cuda"})

    with pytest.raises(DeviceError):
        check_implementation(Gpu(), SQUARE, problems=SMALL)
    with pytest.raises(CheckError, match="it runs on cuda, not on cpu"):
        check_implementation(Gpu(), SQUARE, problems=SMALL, device="cpu")


class ForgottenEverywhere(FunctionalSquare):
    """Returns its result, and does not say so."""

    returns_outputs = False


def test_a_fault_of_every_layout_and_kind_of_inputs_is_told_once() -> None:
    with pytest.raises(CheckError) as raised:
        check_implementation(ForgottenEverywhere(lambda x, *_: x * x), SQUARE)
    (line,) = [line for line in str(raised.value).splitlines() if line.startswith("  failed")]
    assert "say returns_outputs = True" in line
    assert " problems, normal and outliers and spike_last and constant and special inputs)" in line


class TwoEpsilons(Implementation):
    """Right for two epsilons, of which ``unsupported`` or the space tells."""

    op = "rms_norm"
    name = "test.two_epsilons"
    device_types = CPU

    def __init__(self, told_by: str) -> None:
        self._told_by = told_by

    def _knows(self, problem: Problem) -> bool:
        arguments = problem.traits.arguments
        return arguments is None or arguments["eps"] in (1e-6, 1e-5)

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if self._told_by == "unsupported" and not self._knows(problem):
            yield "has two epsilons alone"

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=[1] if self._told_by != "space" or self._knows(problem) else [2])

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, weight, eps = arguments
            outputs[0].copy_(RMS_NORM.reference(x, weight, 1e-6 if eps < 5e-6 else 1e-5))

        return run


@pytest.mark.parametrize("told_by", ["unsupported", "space"])
def test_numbers_that_an_implementation_refuses_are_skipped(told_by: str) -> None:
    problems = [{"rows": 4, "cols": 300, "dtype": "float32"}]
    report = check_implementation(TwoEpsilons(told_by), RMS_NORM, problems=problems)
    assert report.ok
    assert any("inputs with other numbers" in line for line in report.skipped)
    with pytest.raises(CheckError, match="near_zero inputs with other numbers: y"):
        check_implementation(TwoEpsilons("nothing"), RMS_NORM, problems=problems)


def test_numbers_for_which_the_reference_raises_are_not_tried() -> None:
    def one_millionth(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if eps != 1e-6:
            raise ValueError(f"eps={eps}")
        return RMS_NORM.reference(x, weight, eps)

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        return *RMS_NORM.inputs(problem, kind, generator)[:2], 1e-6

    op = replace(RMS_NORM, reference=one_millionth, inputs=inputs)
    problems = [{"rows": 4, "cols": 300, "dtype": "float32"}]
    assert check_implementation(TwoEpsilons("nothing"), op, problems=problems).ok


class OfOneWidth(Implementation):
    """Rows by indices of 64 bits, as a kernel whose parameter is a pointer to these."""

    op = "embedding"
    name = "test.int64"
    device_types = CPU

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        if built.signature.arguments.tensor("indices").dtype != torch.int64:
            raise CompileError("'indices' is a tensor of int32, but the parameter is long*")

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            outputs[0].copy_(torch.nn.functional.embedding(*arguments))

        return run


def test_a_form_for_which_no_plan_can_be_built_is_skipped_as_dispatch_goes_on_with_the_next_candidate() -> None:
    report = check_implementation(OfOneWidth(), EMBEDDING, problems=EMBEDDING.examples[:1])
    (skipped,) = report.skipped
    assert "integers of the other width" in skipped
    assert skipped.endswith("'indices' is a tensor of int32, but the parameter is long*")
