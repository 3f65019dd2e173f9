"""Runs on memory that arrives late: a CPU stands for the GPU, and a queue of writes for its stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from registry.artifact import Built
from registry.contracts import SQUARE
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem, TensorSpec
from registry.space import Config
from registry.tuner.verify import late_inputs, late_runs, verify
from registry.tuner.verify.session import Session
from registry.tuner.verify.verdicts import WrongError

from ..going_through import CPU, PROTOCOL

PROBLEM = SQUARE.problem_of({"n": 100, "dtype": "float32"})
Body = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Callable[[], None]], None]


class Stream:
    """Late writes that are queued until a kernel waits for them, and the ends of waits.

    ``too_late``: whether each run is queued when its wait is over, in order; all later ones are not.
    """

    def __init__(self, *too_late: bool) -> None:
        self.waits: list[int] = []
        self.order: list[str] = []
        self._too_late = iter(too_late)
        self._queued: list[torch.Tensor] = []

    def write(self, table: torch.Tensor, count: int, delay_ns: int) -> None:
        self._queued.append(table)
        if delay_ns:
            self.order.append("write")
        else:
            self.wait()

    def wait(self) -> None:
        """``griddepcontrol.wait``: all that was queued is written."""
        for table in self._queued:
            for target, source, size in table.tolist():
                ctypes.memmove(target, source, size)
        self._queued.clear()

    def sleep(self, cycles: int) -> None:
        self.waits.append(cycles)

    def record(self) -> None:
        self.order.append("record")

    def query(self) -> bool:
        return next(self._too_late, False)


class Square(Implementation):
    """Calls ``body`` with the output, the input, scratch and what waits for the kernel ahead."""

    op, name = "square", "acme.square"
    device_types = frozenset({"cpu"})

    def __init__(self, body: Body, stream: Stream) -> None:
        self._body = body
        self._stream = stream
        self.runs = 0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"work": TensorSpec.contiguous((problem.n,), torch.float32)}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            self.runs += 1
            self._body(outputs[0], arguments[0], scratch[0], self._stream.wait)

        return run


def verified(monkeypatch: pytest.MonkeyPatch, body: Body, stream: Stream) -> tuple[str, Square]:
    """What ``verify`` returns for a square on the stream, and the square."""
    monkeypatch.setattr(late_inputs, "_writer", lambda _: (stream.write, ""))
    monkeypatch.setattr(late_runs, "_sleep", stream.sleep)
    monkeypatch.setattr(late_runs, "_new_event", lambda: stream)
    session, square = Session(SQUARE, PROBLEM, CPU, PROTOCOL, 7), Square(body, stream)
    plan = build(SQUARE, Candidate(square, {}), PROBLEM, session.arguments, CPU)
    return verify.verify(plan, session), square


def waits_first(y: torch.Tensor, x: torch.Tensor, work: torch.Tensor, wait: Callable[[], None]) -> None:
    wait()
    torch.square(x, out=work)
    y.copy_(work)


def reads_first(y: torch.Tensor, x: torch.Tensor, work: torch.Tensor, wait: Callable[[], None]) -> None:
    value = x.clone()
    wait()
    torch.square(value, out=y)


def stores_first(y: torch.Tensor, x: torch.Tensor, work: torch.Tensor, wait: Callable[[], None]) -> None:
    y.zero_()
    wait()
    y.add_(x.square())


def stores_in_scratch_first(y: torch.Tensor, x: torch.Tensor, work: torch.Tensor, wait: Callable[[], None]) -> None:
    work.zero_()
    wait()
    torch.add(work, x.square(), out=y)


def test_a_kernel_that_waits_first_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    told, square = verified(monkeypatch, waits_first, stream)
    assert told == ""
    assert stream.waits == [late_runs._WAIT_CYCLES]
    assert square.runs == 1 + len(SQUARE.kinds)


@pytest.mark.parametrize("body", [reads_first, stores_first, stores_in_scratch_first])
def test_a_kernel_that_reads_or_stores_before_it_waits_is_refused(monkeypatch: pytest.MonkeyPatch, body: Body) -> None:
    with pytest.raises(WrongError) as caught:
        verified(monkeypatch, body, Stream())
    assert caught.value.status in {"wrong_result", "nondeterministic"}


def test_nothing_stands_between_the_kernel_that_writes_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    verified(monkeypatch, waits_first, stream)
    assert stream.order == ["record", "write"]


def test_a_run_that_is_queued_too_late_is_repeated_behind_a_longer_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(True, True)
    told, square = verified(monkeypatch, waits_first, stream)
    assert told == ""
    assert stream.waits == [late_runs._WAIT_CYCLES * times for times in (1, 2, 4)]
    assert square.runs == 3 + len(SQUARE.kinds)


def test_a_host_that_is_always_too_late_is_told_and_the_candidate_is_not_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream(*[True] * 9)
    told, _ = verified(monkeypatch, waits_first, stream)
    assert told.startswith("acme.square: its inputs had arrived before its launch was queued")
    assert stream.waits == [late_runs._WAIT_CYCLES * times for times in (1, 2, 4, 8)]


def test_a_run_that_is_repeated_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run that is wrong, and takes so long that a third follows, is wrong."""
    calls = iter(range(99))

    def second_is_wrong(y: torch.Tensor, x: torch.Tensor, work: torch.Tensor, wait: Callable[[], None]) -> None:
        wait()
        torch.square(x, out=y)
        if next(calls) == 1:
            y.add_(1)

    with pytest.raises(WrongError, match="its second run"):
        verified(monkeypatch, second_is_wrong, Stream(True))


def test_what_cannot_be_tested_on_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "late_fault", lambda _: "inputs do not arrive late: reasons")
    stream = Stream()
    session, square = Session(SQUARE, PROBLEM, CPU, PROTOCOL, 7), Square(waits_first, stream)
    plan = build(SQUARE, Candidate(square, {}), PROBLEM, session.arguments, CPU)
    assert verify.verify(plan, session) == "inputs do not arrive late: reasons"
