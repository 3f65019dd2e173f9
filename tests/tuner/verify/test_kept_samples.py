"""Samples that are judged after they were chosen, by the reference or quickly, and results that are held."""

from __future__ import annotations

import pytest
import torch

from registry.contracts import SQUARE
from registry.device import Device
from registry.errors import RegistryError
from registry.problem import Problem
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.rotation import Rotation
from registry.tuner.verify import kept_samples
from registry.tuner.verify.between_samples import BetweenSamples
from registry.tuner.verify.kept_samples import HeldResults, KeptSample
from registry.tuner.verify.session import Session
from registry.tuner.verify.verdicts import Checks, WrongError

CPU = Device.of("cpu")
X = torch.randn(100, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(SQUARE, Problem("square", {"n": 100, "dtype": "float32"}), CPU, TimingProtocol.of(CPU), 1)


def wrong(value: torch.Tensor) -> torch.Tensor:
    found = value * value
    found[7] = 0.0
    return found


def test_a_sample_is_judged_on_what_its_inputs_and_results_were(session: Session) -> None:
    x, y = X.clone(), X * X
    kept = KeptSample(session, (x,), (y,))
    x.zero_()
    y.zero_()
    assert all(kept())
    assert all(kept.quickly())


def test_a_wrong_result_is_told_either_way(session: Session) -> None:
    kept = KeptSample(session, (X,), (wrong(X),))
    assert not all(kept())
    assert not all(kept.quickly())


def test_a_right_result_needs_no_second_reference(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RegistryError("a reference was computed")

    monkeypatch.setattr(session, "case_of", refuse)
    assert all(KeptSample(session, (X,), (X * X,)).quickly())
    with pytest.raises(RegistryError):
        KeptSample(session, (X,), (wrong(X),)).quickly()


@pytest.mark.parametrize("more", [0, 200])
def test_further_outputs_are_kept_and_judged(session: Session, more: int) -> None:
    rotation = Rotation((X,), 4)
    made: list[int] = []

    def keep(copy: int) -> KeptSample:
        made.append(copy)
        return KeptSample(session, (X,), (wrong(X) if copy == 2 else X * X,))

    between = BetweenSamples(rotation, (), {}, (), (), None, keep)
    between.keep_up_to(1, more)
    for _ in range(3):
        between([0, 1, 2, 3])
    between.settle()
    # of each sample every copy once, however often it was drawn
    assert len(made) <= 3 * (4 if more else 1)
    if more:
        with pytest.raises(WrongError, match="a sample left a wrong output"):
            between.check_kept()


def test_a_result_that_is_held_must_not_change() -> None:
    held, checks = HeldResults(), Checks()
    first, second = (X.clone(),), (X.clone(),)
    held.hold(0, first)
    held.hold(1, second)
    held.check([(X.clone(),), (X.clone(),)], checks)
    checks.settle()
    held.hold(0, first)
    first[0][3] = 1.0
    held.check([(X.clone(),)], checks)
    with pytest.raises(WrongError, match="return the same memory"):
        checks.settle()
    held.check([(X.clone(),)], checks)
    checks.settle()


def test_what_a_graph_writes_again_may_change() -> None:
    held, checks, static = HeldResults(), Checks(), (X.clone(),)
    held.hold(0, static)
    static[0].zero_()
    held.check([static], checks)
    checks.settle()


def test_the_first_result_and_the_latest_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for most_bytes, expected in ((kept_samples._HELD_BYTES, [0, 7, 8, 9]), (1, [9])):
        monkeypatch.setattr(kept_samples, "_HELD_BYTES", most_bytes)
        held = HeldResults()
        for copy in range(10):
            held.hold(copy, (X.clone(),))
        assert [copy for copy, *_ in held._held] == expected
