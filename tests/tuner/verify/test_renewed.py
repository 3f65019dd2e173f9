"""Who takes longer on inputs that it never met is refused; disturbances of the machine refuse nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, cycle

import pytest

from registry.tuner.measure.samplers import Sample, Sampler
from registry.tuner.verify.renewed import Inputs, RenewedPairs
from registry.tuner.verify.verify import WrongError


class Told(Sampler):
    """Takes the times that it is told, and notes on which inputs and copies."""

    how = "told"

    def __init__(self, times: Callable[[Inputs], float], launch_us: float = 1.0) -> None:
        self._times = times
        self.launch_us = launch_us
        self.inputs: Inputs = "usual"
        self.taken: list[tuple[Inputs, int]] = []

    def meet(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def take(self, count: int) -> list[Sample]:
        self.taken.append((self.inputs, self.place))
        self.place += count
        return [Sample(self._times(self.inputs))] * count

    def replay(self) -> None: ...


def compared(told: Told) -> int:
    """The number of pairs until it is clear; raises WrongError."""
    comparison = RenewedPairs(told)
    return next(number for number in count(1) if comparison.go_on(told))


def test_who_takes_as_long_is_acquitted_by_two_pairs_on_the_same_copies() -> None:
    told = Told(lambda inputs: 10.0)
    assert compared(told) == 2
    once = ["known", "known", "new", "usual"]
    assert [inputs for inputs, _ in told.taken] == once * 2
    assert [place for _, place in told.taken] == [0, 0, 0, 1, 2, 2, 2, 3]


def test_a_long_launch_is_acquitted_by_two_samples() -> None:
    told = Told(lambda inputs: 1e6, launch_us=1e6)
    assert compared(told) == 1
    assert [inputs for inputs, _ in told.taken] == ["known", "new"]


@pytest.mark.parametrize("launch_us", [1.0, 1e6])
def test_who_takes_longer_on_new_inputs_is_refused(launch_us: float) -> None:
    told = Told(lambda inputs: 16.0 if inputs == "new" else 10.0, launch_us)
    with pytest.raises(WrongError, match=r"takes 1\.6 times as long on inputs that it has not met"):
        compared(told)
    assert told.inputs == "usual"


def disturbed(*often: float) -> Callable[[Inputs], float]:
    times: Iterator[float] = cycle(often)
    return lambda inputs: next(times) if inputs == "new" else 10.0


@pytest.mark.parametrize("times", [(90.0, 10.0), (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 11.0)])
def test_disturbances_refuse_nobody(times: tuple[float, ...]) -> None:
    assert compared(Told(disturbed(*times))) in {4, 9}
