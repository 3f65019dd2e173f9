"""What a run knows about noise: by decade of duration, from few problems or many."""

from __future__ import annotations

import json
import math

import pytest

from registry.student_t import t_quantile
from registry.tuner.decide.noise import Noise, Pair


@pytest.mark.parametrize(
    ("probability", "freedom", "known"),
    [
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.995, 2, 9.925), (0.975, 3, 3.182), (0.995, 4, 4.604),
        (0.975, 5, 2.571), (0.99, 10, 2.764), (0.975, 29, 2.045),
    ],
)  # fmt: skip
def test_quantiles_of_student_t(probability: float, freedom: int, known: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(known, abs=1e-3)


def test_quantiles_between_whole_degrees_of_freedom_lie_between() -> None:
    values = [t_quantile(0.975, freedom) for freedom in (4, 4.25, 4.5, 4.75, 5)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


def test_noise_is_taken_from_decided_pairs_of_the_same_duration() -> None:
    pairs = (*[Pair(20.0, 1.02)] * 12, *[Pair(2000.0, 1.001)] * 12)
    noise = Noise(decided=pairs, single=(Pair(20.0, 1.5),) * 12)
    assert noise.aa(25.0) == pytest.approx(0.02, abs=1e-6)
    assert noise.aa(1500.0) == pytest.approx(0.001, abs=1e-6)


def test_a_few_problems_take_the_wider_noise_of_single_processes() -> None:
    noise = Noise(decided=(Pair(20.0, 1.001),) * 9, single=(*[Pair(20.0, 0.97)] * 10, *[Pair(5e3, 1.2)] * 10))
    assert noise.aa(20.0) == pytest.approx(1 / 0.97 - 1)
    only_elsewhere = Noise(single=(Pair(5e3, 1.2),) * 10)
    assert only_elsewhere.aa(20.0) == pytest.approx(0.2)
    assert Noise().aa(10.0) == 0.0


def test_finals_of_about_the_same_duration_are_counted_once_each() -> None:
    noise = Noise(decided=(*[Pair(20.0, 1.0)] * 3, *[Pair(2000.0, 1.0)] * 4), single=(Pair(20.0, 1.0),) * 5)
    assert [noise.finals_like(durations) for durations in ([25.0, 30.0], [25.0, 1e3], [1e6], [])] == [3, 7, 0, 0]


def test_it_is_a_high_percentile_and_not_one_pair() -> None:
    quiet = Noise(decided=(*[Pair(20.0, 1.001)] * 99, Pair(20.0, 1.5)))
    assert quiet.aa(20.0) == pytest.approx(0.001, abs=1e-6)
    loud = Noise(decided=(*[Pair(20.0, 1.001)] * 90, *[Pair(20.0, 1.5)] * 10))
    assert loud.aa(20.0) == pytest.approx(0.5)


def test_the_usual_variance_is_that_of_the_decade_and_counts_more_the_more_it_rests_on() -> None:
    short, long = ((20.0, 4e-4),) * 20, ((2000.0, 1e-6),) * 20
    prior, other = Noise(variances=short + long).prior(25.0), Noise(variances=short + long).prior(1500.0)
    assert prior.variance / other.variance == pytest.approx(400.0)
    few = Noise(variances=short[:2]).prior(25.0)
    assert 0 < few.freedom < prior.freedom < 3.0
    assert Noise().prior(20.0).freedom == 0.0


def test_copies_stand_in_for_challengers_while_these_are_few() -> None:
    copies = ((20.0, 1e-6),) * 5
    assert Noise(copies=copies).prior(20.0).variance > 0
    assert (
        Noise(variances=((20.0, 1e-4),) * 4, copies=copies).prior(20.0).freedom
        > Noise(copies=copies).prior(1.0).freedom
    )
    many = Noise(variances=((20.0, 1e-4),) * 10)
    assert (many + Noise(copies=copies)).prior(2e4) == many.prior(2e4)


def test_one_wild_candidate_does_not_change_what_is_usual() -> None:
    calm = ((20.0, 1e-5),) * 20
    assert Noise(variances=(*calm, (20.0, 10.0))).prior(20.0).variance == Noise(variances=calm).prior(20.0).variance


@pytest.mark.parametrize(
    "details", [{}, {"single": 3}, {"single": [[1.0]]}, {"decided": [[0.0, 1.0]]}, {"single": "ab"}]
)
def test_details_of_another_form_say_nothing(details: dict[str, object]) -> None:
    assert Noise.of_details(details) == Noise()


def test_it_adds_up_and_is_stored_by_decade() -> None:
    noise = Noise(single=(Pair(20.0, 1.01),) * 6) + Noise(single=(Pair(20.0, 1.01),) * 6, decided=(Pair(20.0, 1.0),))
    assert noise.details["aa"] == {"10 µs": 0.01}
    assert Noise.of_details(json.loads(json.dumps(noise.details))) == noise
    assert math.isclose(noise.aa(20.0), 0.01, rel_tol=1e-9)
