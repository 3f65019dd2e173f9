"""Layouts at the probes: who is wrong in one of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from registry.artifact import Artifact, Signature, Target, Variant
from registry.contract import Op
from registry.contracts import SOFTMAX, SQUARE
from registry.correctness.grad_modes import OTHER_MODES
from registry.device import Device
from registry.dispatch.plans.other_size import bound_by_call
from registry.dispatch.plans.plan import Candidate
from registry.dispatch.plans.two_threads import MOST_CALLS
from registry.implementation import Implementation
from registry.problem import Problem
from registry.space import Config
from registry.tuner.verify import probes as probes_module
from registry.tuner.verify.own_size import probes_of_own_size
from registry.tuner.verify.probe_inputs import OTHER_NUMBERS
from registry.tuner.verify.probes import Probes
from registry.tuner.verify.session import Session
from registry.tuner.verify.verdicts import WrongError

from ...misreading import dense_columns, leading_dimension
from ..going_through import CPU, PROTOCOL, Custom, go_through


def session_of_rows() -> Session:
    return Session(SOFTMAX, SOFTMAX.problem_of({"rows": 64, "cols": 48, "dtype": "float32"}), CPU, PROTOCOL, 7)


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Takes the gap between elements into account, and no other, but for transposed ones."""
    step = x.stride(-1)
    return x if x.mT.is_contiguous() else x.as_strided(x.shape, (x.shape[-1] * step, step))


def one_gap(x: torch.Tensor) -> torch.Tensor:
    """Right for dense rows, however far apart they are, and for transposed ones."""
    return x if x.mT.is_contiguous() else x.as_strided(x.shape, (x.stride(0), 1))


def row_major(x: torch.Tensor) -> torch.Tensor:
    """Takes transposed rows for row-major ones."""
    return x.as_strided(x.shape, (x.shape[1], 1)) if x.mT.is_contiguous() else x


@pytest.mark.parametrize(
    ("read", "layout"),
    [
        (dense_rows, "sliced"),
        (one_gap, "strided"),
        (row_major, "transposed"),
        (leading_dimension, "expanded-dense"),
        (dense_columns, "scalar-dense"),
    ],
)
@pytest.mark.few(3)
def test_who_misreads_a_layout_is_refused(read: Callable[[torch.Tensor], torch.Tensor], layout: str) -> None:
    def softmax(y: torch.Tensor, x: torch.Tensor, dim: int) -> None:
        y.copy_(torch.softmax(read(x) if x.dim() == 2 and dim == -1 else x, dim))

    with pytest.raises(WrongError, match=f"not for softmax.* with {layout} inputs"):
        go_through(Custom("softmax", softmax), session_of_rows(), {})


@pytest.mark.usefixtures("no_secrets")
def test_columns_of_a_wider_tensor_are_tried_where_there_are_rows() -> None:
    seen: list[tuple[tuple[int, ...], bool]] = []

    def softmax(y: torch.Tensor, x: torch.Tensor, dim: int) -> None:
        seen.append((x.stride(), x.data_ptr() % 16 == 0))
        y.copy_(torch.softmax(x, dim))

    def square(y: torch.Tensor, x: torch.Tensor) -> None:
        seen.append((x.stride(), x.data_ptr() % 16 == 0))
        torch.mul(x, x, out=y)

    session = session_of_rows()
    plan = bound_by_call(SOFTMAX, Candidate(Custom("softmax", softmax), {}), session.problem, session.arguments, CPU)
    Probes(CPU).check(plan, {})
    # three sizes, without gradients and two threads at the largest, six layouts, other kinds at each, other views; a
    # smaller size, a larger one with two threads and layouts, each after its own size in that layout, and one that is
    # no multiple of 16, each with other kinds
    dense, kinds, met = [((48, 1), True)], len(SOFTMAX.kinds) - 1, 2 + 2 * MOST_CALLS
    modes = len(OTHER_MODES)
    unaligned, sliced, strided = ((48, 1), False), ((49, 1), True), ((99, 2), True)
    expanded = [((0, 1), True), ((0, 0), True)]
    apart = [unaligned, sliced, ((1, 37), True), strided, *expanded]
    pairs = [unaligned, unaligned, sliced, sliced, ((1, 64), True), ((1, 208), True), strided, strided]
    pairs += [each for each in expanded for _ in range(2)]
    views = [(48, 48, 1), (50, 49, 1), (432, 48, 1), (442, 49, 1), (432, 432, 48, 1), (443, 442, 49, 1)]
    reduced = [(36, 1), (37, 1), (432, 9, 1), (481, 10, 1), (48, 1), (49, 1)]
    views = [(strides, True) for strides in (*views, *reduced, (1, 36))]
    first, second = (2 + modes + met) * dense + apart + 3 * kinds * dense + views, (1 + kinds) * dense
    assert seen == first + second + met * dense + pairs + kinds * dense + second
    seen.clear()
    session = Session(SQUARE, SQUARE.problem_of({"n": 1000, "dtype": "float32"}), CPU, PROTOCOL, 7)
    plan = bound_by_call(SQUARE, Candidate(Custom("square", square), {}), session.problem, session.arguments, CPU)
    Probes(CPU).check(plan, {})
    dense, apart = [((1,), True)], [((1,), False), ((2,), True), ((0,), True)]
    views = [(one, True) for one in [(1, 1), (2, 1), (9, 1), (10, 1), (9, 9, 1), (11, 10, 1), (2,), (1, 4)]]
    first, second = (2 + modes + met) * dense + apart + 3 * kinds * dense + views, (1 + kinds) * dense
    pairs = [each for each in apart for _ in range(2)]
    assert seen == first + second + met * dense + pairs + kinds * dense + second


@pytest.mark.usefixtures("no_secrets")
def test_problems_of_other_sizes_share_probes_and_what_passed_them() -> None:
    runs: list[int] = []

    def softmax(y: torch.Tensor, x: torch.Tensor, dim: int) -> None:
        runs.append(len(x))
        y.copy_(torch.softmax(x, dim))

    implementation, probes = Custom("softmax", softmax), Probes(CPU)

    def check(rows: int, cols: int = 48) -> int:
        runs.clear()
        problem = SOFTMAX.problem_of({"rows": rows, "cols": cols, "dtype": "float32"})
        session = Session(SOFTMAX, problem, CPU, PROTOCOL, 7)
        probes.check(bound_by_call(SOFTMAX, Candidate(implementation, {}), problem, session.arguments, CPU), {})
        return len(runs)

    met, layouts, kinds = 2 + 2 * MOST_CALLS, 6, len(SOFTMAX.kinds) - 1
    views = 2 * 6 + 1
    shared, own = 2 + len(OTHER_MODES) + met + layouts + 3 * kinds + views, met + 2 * layouts + kinds + 2 * (1 + kinds)
    # three times 8192 rows cost too much: what is bound for 1024 of them is run there, and on 2048; closely, what is
    # bound for 512 of them, there and on 1024, in fewer calls
    met_less = 2 + 2 * 21
    much = 1 + 2 + 2 + (1 + kinds) + (1 + met_less + 2 * layouts + kinds) + (1 + kinds)
    assert [check(64), check(65), check(8192)] == [shared + own, own, much]
    # one row is itself a probe of the others, and there is no smaller size; 16 are larger
    assert check(1) == shared + own - 2 * (1 + kinds) + met - 1 + layouts - 1
    in_each = "once for the two larger sizes in each layout but the one of expanded rows, and not as a probe of its own"
    assert runs.count(1) == layouts - 1, in_each
    assert check(64, cols=49) == shared + own


def test_who_knows_the_sizes_of_all_probes_meets_others() -> None:
    session = Session(SQUARE, SQUARE.problem_of({"n": 20_000, "dtype": "float32"}), CPU, PROTOCOL, 7)
    known, is_learning = {1}, True

    def square(y: torch.Tensor, x: torch.Tensor) -> None:
        if is_learning:
            known.add(len(x))
        torch.mul(x, x, out=y) if len(x) in known else y.zero_()

    candidate = Candidate(Custom("square", square), {})
    plan = bound_by_call(SQUARE, candidate, session.problem, session.arguments, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probes, "secret_sizes", 0)
        Probes(CPU).check(plan, {})
    is_learning = False
    assert {1, 37, 4099, 20_000} < known
    with pytest.raises(WrongError, match=r"not for square\(n="):
        Probes(CPU).check(plan, {})


@pytest.mark.parametrize("always", [False, True])
def test_only_who_is_wrong_again_is_said_to_claim_falsely_that_sizes_do_not_matter(always: bool) -> None:
    session = Session(SQUARE, SQUARE.problem_of({"n": 20_000, "dtype": "float32"}), CPU, PROTOCOL, 7)
    met = {20_000}

    class Bound(Custom):
        any_size = True

        def bind(self, problem: Problem, config: Config, device: Device, built: Any) -> Any:
            def run(outputs: Any, arguments: Any, scratch: Any) -> None:
                (y,), (x,) = outputs, arguments
                right = y.numel() == problem.n if always else y.numel() in met
                met.add(y.numel())
                torch.mul(x, x, out=y) if right else y.zero_()

            return run

    with pytest.raises(WrongError, match="says any_size = True" if always else r"right here, but not for square\(n="):
        go_through(Bound("square", torch.square), session, {})


@pytest.mark.usefixtures("no_secrets")
def test_probes_take_no_more_than_their_part_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Problem] = []
    inputs = SOFTMAX.inputs

    def counted(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        values = inputs(problem, kind, generator)
        if not values[0].is_meta:  # specs are asked for by meta tensors, which take no memory
            made.append(problem)
        return values

    monkeypatch.setattr(probes_module, "_GROUPS_PART", 0.0)
    op = replace(SOFTMAX, inputs=counted)
    probes = Probes(CPU)
    for cols in (48, 49, 48):
        problem = op.problem_of({"rows": 64, "cols": cols, "dtype": "float32"})
        arguments = op.arguments(inputs(problem, "normal", torch.Generator()))
        implementation = Custom("softmax", lambda y, x, dim: y.copy_(torch.softmax(x, dim)))
        probes.check(bound_by_call(op, Candidate(implementation, {"again": len(made)}), problem, arguments, CPU), {})
    # three sizes and three others, whose layouts are copies, and its own; twice inputs for a second thread; every other
    # kind at six sizes; other views of one more, and other forms of it
    each = 3 + 3 + 1 + 2 + 6 * (len(SOFTMAX.kinds) - 1) + 2
    assert {problem.cols for problem in made[-each:]} == {48}
    assert len(made) == 3 * each


def test_groups_that_are_not_used_any_more_are_dropped_first_and_kept_while_there_is_room() -> None:
    square = Custom("square", lambda y, x: torch.mul(x, x, out=y))
    sizes = range(1000, 1000 + 20 * 64, 64)
    made: list[int] = []

    def met(probes: Probes, n: int) -> None:
        problem = SQUARE.problem_of({"n": n, "dtype": "float32"})
        session = Session(SQUARE, problem, CPU, PROTOCOL, 7)
        plan = bound_by_call(SQUARE, Candidate(square, {"try": len(made)}), problem, session.arguments, CPU)

        def of_own(*_: Any) -> list[Any]:
            made.append(n)
            return list(probes_of_own_size(session))

        probes.check_group(f"own {n}", of_own, plan, {})

    roomy = Probes(CPU)
    for n in (*sizes, *sizes):
        met(roomy, n)
    assert made == [*sizes]
    held = sum(roomy._sizes.values())
    made.clear()
    tight = Probes(replace(CPU, memory_bytes=int(0.98 * held / probes_module._GROUPS_PART)))
    for n in (*sizes, *reversed(sizes)):
        met(tight, n)
    # the oldest had to go, though it is the smallest
    assert made[: len(sizes)] == [*sizes]
    assert made[len(sizes) :] == [sizes[0]]


class ByDivisibility(Custom):
    """Compiled one way for rows in sixteens, another way for others."""

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        return (Variant("test", "kernel", {"sixteens": problem.rows % 16 == 0}),)

    def compile(self, variant: Variant, target: Target) -> Artifact:
        return Artifact(variant)


def test_who_had_no_variant_for_the_probes_meets_them_with_another_problems() -> None:
    def forgets_the_rest(y: torch.Tensor, x: torch.Tensor, *_: Any) -> None:
        y.copy_(torch.softmax(x, -1))
        y[len(x) // 16 * 16 :].zero_()

    implementation, probes = ByDivisibility("softmax", forgets_the_rest), Probes(CPU)

    def check(rows: int) -> None:
        problem = SOFTMAX.problem_of({"rows": rows, "cols": 48, "dtype": "float32"})
        session = Session(SOFTMAX, problem, CPU, PROTOCOL, 7)
        plan = bound_by_call(SOFTMAX, Candidate(implementation, {}), problem, session.arguments, CPU)
        assert probes.come_first(plan)
        probes.check(plan, {artifact.variant.key: artifact for artifact in plan.artifacts})

    check(4096)
    with pytest.raises(WrongError, match="right here, but not for softmax"):
        check(65)


@pytest.mark.parametrize("told", ["Triton Error [CUDA]: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"])
@pytest.mark.few(1)
def test_whom_memory_fails_at_a_probe_is_not_refused(told: str) -> None:
    def softmax(y: torch.Tensor, x: torch.Tensor, *_: Any) -> None:
        if len(x) < 64:
            raise RuntimeError(told)
        y.copy_(torch.softmax(x, -1))

    go_through(Custom("softmax", softmax), session_of_rows(), {})


def of_a_share(reference: Callable[..., torch.Tensor], share: float) -> Op:
    """An op with a share, of rows with some elements of minus infinity."""

    def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor, float]:
        (x,) = SQUARE.inputs(problem, kind, generator)
        return x.masked_fill(torch.arange(len(x)) % 7 == 0, float("-inf")), share

    name, exact = "acme::shared", dict.fromkeys(SQUARE.tolerance.rtol, 0.0)
    return replace(
        SQUARE, name=name, schema=f"{name}(Tensor x, float share) -> Tensor y", reference=reference, inputs=inputs,
        fake=lambda x, _: torch.empty_like(x), numbers=frozenset({"share"}), backward=None,
        tolerance=replace(SQUARE.tolerance, rtol=exact),
    )  # fmt: skip


def check_own_size(implementation: Implementation, session: Session) -> None:
    plan = bound_by_call(session.op, Candidate(implementation, {}), session.problem, session.arguments, CPU)
    Probes(CPU).check_own_size(plan, session, {})


def nine_tenths(x: torch.Tensor, share: float) -> torch.Tensor:
    if share != 0.9:
        raise ValueError(f"share={share}")
    return torch.where(x.isneginf(), 0.0, x)


def smoothed(x: torch.Tensor, share: float) -> torch.Tensor:
    return torch.where(x.isneginf() & (share == 0), 0.0, x)


@pytest.mark.parametrize(("reference", "share"), [(nine_tenths, 0.9), (smoothed, 0.0)])
def test_numbers_of_which_the_op_makes_no_sense_refuse_nobody(
    reference: Callable[..., torch.Tensor], share: float
) -> None:
    def usual(y: torch.Tensor, x: torch.Tensor, given: float) -> None:
        y.copy_(torch.where(x.isneginf(), 0.0 if given == share else float("nan"), x))

    op = of_a_share(reference, share)
    session = Session(op, op.problem_of({"n": 5000, "dtype": "float32"}), CPU, PROTOCOL, 7)
    assert not [probe for probe in probes_of_own_size(session) if probe.kind == OTHER_NUMBERS]
    go_through(Custom(op.name, usual), session, {})
    check_own_size(Custom(op.name, usual), session)


def test_who_has_the_usual_number_in_the_code_is_refused() -> None:
    def usual(y: torch.Tensor, x: torch.Tensor, _: float) -> None:
        y.copy_(torch.where(x.isneginf(), 0.0, x * 0.5))

    op = of_a_share(lambda x, share: torch.where(x.isneginf(), 0.0, x * share), 0.5)
    session = Session(op, op.problem_of({"n": 5000, "dtype": "float32"}), CPU, PROTOCOL, 7)
    assert [probe for probe in probes_of_own_size(session) if probe.kind == OTHER_NUMBERS]
    for check in (partial(go_through, config={}), check_own_size):
        with pytest.raises(WrongError, match="times what is allowed"):
            check(Custom(op.name, usual), session)
