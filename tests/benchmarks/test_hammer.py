"""Threads that call and forget at once: every result is right, and one that is not is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.hammer import Hammer, cases, main
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

from ..tiers import one_of_each


@pytest.fixture(autouse=True)
def _one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("forced", "seconds"), one_of_each([(True, 0.3), (True, 1.0), (False, 1.0)]))
@pytest.mark.thorough
def test_no_result_is_wrong_and_nobody_stands_still(forced: bool, seconds: float) -> None:
    dispatcher = Dispatcher(Catalog())
    work = cases(dispatcher, "cpu", (1, 3, 8), statics=1)
    outcome = Hammer(dispatcher, "cpu", work, threads=4, streams=1).run(seconds, forced=forced)
    assert outcome.ok, str(outcome)
    assert outcome.forgotten > 0
    assert outcome.misses > 0


@pytest.mark.thorough
def test_one_op_is_hammered_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--op", "softmax", "--device", "cpu", "--seconds", "0.4", "--threads", "2", "--rows", "1", "3"]) == 0
    told = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(":")[0] for line in told] == [
        "as a program calls",
        "while all is forgotten",
        "forced in turns, likewise",
    ]
    assert "all forgotten 0 times, wrong: none" in told[0]
    assert {case.op for case in cases(Dispatcher(Catalog()), "cpu", (1,), ops={"softmax"})} == {"softmax"}


def test_a_wrong_result_and_a_fault_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(Catalog())
    work = cases(dispatcher, "cpu", (2,), statics=1)
    hammer = Hammer(dispatcher, "cpu", work, threads=2, streams=1)
    hammer.warm(forced=False)
    right = dispatcher.call

    def off(op: str, *values: object) -> torch.Tensor:
        y: torch.Tensor = right(op, *values)
        return y + 1 if op == "softmax" else y

    monkeypatch.setattr(dispatcher, "call", off)
    outcome = hammer.run(0.2, forced=False, forget=False)
    assert not outcome.ok
    assert [title.split("(")[0] for title in outcome.wrong] == ["softmax"]

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("broken")

    monkeypatch.setattr(hammer, "warm", lambda forced: None)
    monkeypatch.setattr(dispatcher, "call", broken)
    assert "RuntimeError: broken" in str(hammer.run(0.1, forced=False, forget=False))
