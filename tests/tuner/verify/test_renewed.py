"""Who takes longer on inputs that it never met is refused; disturbances of the machine refuse nobody."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, cycle

import pytest

from registry.tuner.measure.samplers import Sample, Sampler
from registry.tuner.verify.renewed import Inputs, RenewedPairs
from registry.tuner.verify.verify import WrongError


class Told(Sampler):
    """Takes the times that it is told, and notes on which inputs and copies."""

    how = "told"

    def __init__(self, times: Callable[[Inputs], float], launch_us: float = 1.0, others: int = 0) -> None:
        self._times = times
        self.others = others
        self.launch_us = launch_us
        self.inputs: Inputs = "usual"
        self.taken: list[tuple[Inputs, int]] = []

    def meet(self, inputs: Inputs) -> None:
        self.others -= inputs == "other"
        self.inputs = inputs

    def has_other(self) -> bool:
        return self.others > 0

    def take(self, count: int) -> list[Sample]:
        self.taken.append((self.inputs, self.place))
        self.place += count
        return [Sample(self._times(self.inputs))] * count

    def replay(self) -> None: ...


def compared(told: Told, *, renews: bool = True) -> int:
    """The number of pairs on new inputs until it is clear; raises WrongError."""
    comparison = RenewedPairs(told, renews=renews)
    while not comparison.go_on(told):
        assert told.inputs == "usual"
    return sum(inputs == "new" for inputs, _ in told.taken)


def test_who_takes_as_long_is_acquitted_by_two_pairs_on_the_same_copies() -> None:
    told = Told(lambda inputs: 10.0)
    assert compared(told) == 2
    once = ["known", "known", "new", "usual"]
    pause = ["waited", "quick"]
    assert [inputs for inputs, _ in told.taken] == once * 2 + pause * 2
    assert [place for _, place in told.taken] == [0, 0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7]


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


@pytest.mark.parametrize("after_a_pause", [("known", "new", "waited"), ("waited",)])
def test_who_takes_longer_after_the_pause_before_compared_inputs_is_refused(after_a_pause: tuple[Inputs, ...]) -> None:
    told = Told(lambda inputs: 1600.0 if inputs in after_a_pause else 937.5)
    with pytest.raises(WrongError, match=r"takes 1\.6 times as long after a pause as after none"):
        compared(told)
    assert told.inputs == "usual"
    assert len(told.taken) == 2 * 4 + 8 * 2, "known and new inputs took as long"


def test_one_that_errs_about_the_pause_now_and_then_is_refused_too() -> None:
    times = cycle([1600.0, 1600.0, 1600.0, 1600.0, 900.0])
    with pytest.raises(WrongError, match="after a pause as after none"):
        compared(Told(lambda inputs: next(times) if inputs == "waited" else 900.0))


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_is_never_at_rest_refuses_nobody(seed: int) -> None:
    drawn = random.Random(seed)
    told = Told(lambda inputs: 10.0 * drawn.choice([1.0, 1.0, 1.0, 2.0, 3.0]))
    compared(told)
    assert len(told.taken) < 120


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_who_takes_longer_after_a_pause_is_refused_only_where_threads_had_their_cores(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    clock = count(step=100)
    monkeypatch.setattr("registry.tuner.measure.cores.perf_counter_ns", lambda: next(clock))
    waits = count(step=int(100 * share))
    monkeypatch.setattr("registry.tuner.measure.cores._waited_ns", lambda: next(waits))
    told = Told(lambda inputs: 1600.0 if inputs == "waited" else 900.0)
    told.on_cores = True
    if share:
        compared(told)
        assert sum(inputs == "waited" for inputs, _ in told.taken) == 12, "a machine that is too busy to tell"
        return
    with pytest.raises(WrongError, match="after a pause as after none"):
        compared(told)


def disturbed(*often: float) -> Callable[[Inputs], float]:
    times: Iterator[float] = cycle(often)
    return lambda inputs: next(times) if inputs == "new" else 10.0


@pytest.mark.parametrize("times", [(90.0, 10.0), (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 11.0)])
def test_disturbances_refuse_nobody(times: tuple[float, ...]) -> None:
    assert compared(Told(disturbed(*times))) in {4, 9}


@pytest.mark.parametrize("renews", [True, False])
def test_who_takes_as_long_on_integers_of_another_draw_is_acquitted_by_two_pairs(renews: bool) -> None:
    told = Told(lambda inputs: 10.0, others=9)
    compared(told, renews=renews)
    met = [inputs for inputs, _ in told.taken]
    once = ["known", "known", "other", "usual"]
    assert met == (["known", "known", "new", "usual"] * 2 if renews else []) + once * 2 + (
        ["waited", "quick"] * 2 if renews else []
    )


def test_who_takes_longer_on_integers_of_a_dozen_other_draws_is_refused() -> None:
    told = Told(lambda inputs: 16.0 if inputs == "other" else 10.0, others=64)
    with pytest.raises(WrongError, match=r"takes 1\.6 times as long on integers that it has not met"):
        compared(told, renews=False)
    assert told.others == 64 - 12
    assert told.inputs == "usual"


def test_where_integers_decide_about_the_time_nobody_is_refused() -> None:
    times = cycle([90.0, 80.0, 11.0, 70.0, 60.0, 50.0, 40.0])
    told = Told(lambda inputs: next(times) if inputs == "other" else 10.0, others=64)
    compared(told, renews=False)
    assert told.others == 64 - 14


def test_who_has_met_all_other_draws_is_acquitted() -> None:
    told = Told(lambda inputs: 16.0 if inputs == "other" else 10.0, others=11)
    compared(told, renews=False)
    assert told.others == 0
