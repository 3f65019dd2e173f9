"""A plan at another size is made of what is in memory, as a call's is, and is checked so along every dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch

from registry.artifact import Built
from registry.backends import CppImplementation, CppKernel
from registry.contract import Floor, Op, Tolerance
from registry.device import Device
from registry.dispatch.plans.other_size import at_other_size, bound_by_call
from registry.dispatch.plans.plan import Candidate, Plan
from registry.errors import CheckError
from registry.implementation import Implementation, Launch, Run, Tensors
from registry.problem import Arguments, Problem, Value
from registry.space import Config
from registry.testing import check_implementation

CPU = Device.of("cpu")


def problem_of_call(arguments: Arguments) -> Mapping[str, Value]:
    return {"n": arguments.tensor("x").shape[0], "times": arguments.integer("times")}


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(problem.n, generator=generator), problem.times


REPEAT = Op(
    name="acme::repeat",
    schema="acme::repeat(Tensor x, int times) -> (Tensor y)",
    version=1,
    reference=lambda x, times: x * times,
    fake=lambda x, times: torch.empty_like(x),
    problem=problem_of_call,
    inputs=inputs,
    floor=lambda problem: Floor(8 * problem.n, 0),
    tolerance=Tolerance({"float32": 1e-6}, {"float32": 0.0}, lambda problem, reference: reference.abs()),
    static=frozenset(),
    dynamic=frozenset({"n", "times"}),
)
DIMS = {"n": 64, "times": 5}


class Adding(CppImplementation):
    """Adds x to y again and again."""

    op, name = "acme::repeat", "acme.adding"
    kernel: ClassVar[CppKernel] = CppKernel(
        """static void repeat(float* y, const float* x, int64_t n, int64_t times) {
            for (int64_t place = 0; place < n; ++place) {
                double sum = 0;
                for (int64_t time = 0; time < times; ++time) sum += x[place];
                y[place] = sum;
            }
        }""",
        "repeat",
    )

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(self.kernel, (1,), ("y", "x", *self.sizes(problem)))

    def sizes(self, problem: Problem) -> tuple[int, int]:
        return problem.n, problem.times

    def unsupported(self, problem: Problem, device: Device) -> Any:
        yield from super().unsupported(problem, device)
        if not problem.traits["contiguous"]:
            yield "row-major tensors only"


class AtMostEightTimes(Adding):
    """Right at the size that is asked for first, and wrong at three times as many."""

    name = "acme.eight"

    def sizes(self, problem: Problem) -> tuple[int, int]:
        return problem.n, min(problem.times, 8)


class AtMost64(Adding):
    """Leaves the rest unwritten."""

    name = "acme.sixty_four"

    def sizes(self, problem: Problem) -> tuple[int, int]:
        return min(problem.n, 64), problem.times


class Multiplying(Implementation):
    """torch's product, by an attribute of the call, or of the problem that it was bound for."""

    op, name = "acme::repeat", "acme.multiplying"
    device_types = frozenset({"cpu"})
    any_size = True

    def __init__(self, *, bound: bool = False) -> None:
        self._bound = bound

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        times = problem.times

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            torch.mul(arguments[0], times if self._bound else arguments[1], out=outputs[0])

        return run


def bound(implementation: Implementation, **sizes: int) -> Plan:
    problem = REPEAT.problem_of({**DIMS, **sizes})
    given = REPEAT.draw(problem, "normal", torch.Generator())
    return bound_by_call(REPEAT, Candidate(implementation, {}), problem, REPEAT.arguments(given), CPU)


def resized(plan: Plan, **sizes: int) -> Plan | None:
    given = REPEAT.draw(REPEAT.problem_of({**DIMS, **sizes}), "normal", torch.Generator())
    arguments = REPEAT.arguments(given)
    return at_other_size(plan, REPEAT.pose(arguments), arguments, CPU)


@pytest.mark.parametrize("sizes", [{"n": 7}, {"times": 6}, {"n": 7, "times": 6}])
def test_a_run_that_says_any_size_is_the_other_sizes_too(sizes: dict[str, int]) -> None:
    plan = bound(Multiplying())
    found = resized(plan, **sizes)
    assert found is not None
    assert found.run is plan.run
    n, times = sizes.get("n", 64), sizes.get("times", 5)
    assert found.signature.outputs["y"].shape == (n,)
    x = torch.randn(n)
    torch.testing.assert_close(found(x, times), times * x)


def test_a_loaded_kernel_is_bound_to_other_sizes_and_attributes() -> None:
    plan, x = bound(Adding()), torch.randn(7)
    found = resized(plan, n=7, times=3)
    assert found is not None
    torch.testing.assert_close(found(x, 3), 3 * x)


@pytest.mark.parametrize("implementation", [Adding(), Multiplying()])
def test_the_signature_of_another_size_has_its_own_specs(implementation: Implementation) -> None:
    found = resized(bound(implementation), n=7, times=3)
    assert found is not None
    arguments = found.signature.arguments
    assert found.signature.outputs == REPEAT.new_output_specs(arguments, CPU.torch)
    assert found.signature.misaligned().outputs["y"].alignment < 16
    assert found.signature.operands["y"].value == found.signature.outputs["y"]


def test_nothing_is_compiled_for_another_size() -> None:
    class Own(Multiplying):
        any_size = False

    assert resized(bound(Own()), n=7) is None


@pytest.mark.parametrize(
    ("implementation", "told"),
    [
        (AtMostEightTimes(), "acme::repeat(n=64, times=15) after times=5"),
        (AtMost64(), "acme::repeat(n=192, times=5) after n=64"),
        (Multiplying(bound=True), "after times=5"),
    ],
)
@pytest.mark.few(1)
def test_wrong_at_another_size_along_any_dimension_is_refused(implementation: Implementation, told: str) -> None:
    with pytest.raises(CheckError) as raised:
        check_implementation(implementation, REPEAT, problems=[DIMS])
    failed = [line for line in str(raised.value).splitlines() if line.startswith("  failed")]
    assert failed
    assert all(told in line for line in failed)


@pytest.mark.parametrize("implementation", [Adding(), Multiplying()])
def test_right_at_all_sizes_is_accepted(implementation: Implementation) -> None:
    report = check_implementation(implementation, REPEAT, problems=[DIMS])
    after = [line for line in report.checked if " after " in line]
    assert sum(") after " in line for line in after) == 6
