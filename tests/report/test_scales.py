"""Axes and numbers: order is kept, labels never touch, what is shown is what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.report import formats
from registry.report.scales import LogScale
from registry.tuner.decide.noise import Noise

from .records import NOISE

positive = st.floats(1e-3, 1e9)


@given(st.lists(positive, min_size=2, max_size=20))
def test_a_longer_time_is_never_drawn_below_a_shorter_one(values: list[float]) -> None:
    scale = LogScale.around(values, 260, 12)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places, reverse=True)
    assert all(12 <= place <= 260 for place in places)


@given(st.lists(st.integers(1, 2**30), min_size=2, max_size=40, unique=True))
def test_labels_do_not_touch(values: list[int]) -> None:
    ticks = LogScale.around(values, 70, 540, margin=1.01).value_ticks(values, 6.6)
    assert len(ticks) == len(values)
    labelled = [tick for tick in ticks if tick.label]
    for one, other in itertools.pairwise(labelled):
        assert other.at - one.at >= (len(one.label) + len(other.label)) * 3.3


@given(positive, st.floats(1.3, 1e6))
def test_a_time_axis_has_grid_lines_within_it(low: float, factor: float) -> None:
    scale = LogScale(low, low * factor, 260, 12)
    assert all(12 <= tick.at <= 260 for tick in scale.ticks())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (4096, "4096"),
        (131072, "128Ki"),
        (32000, "32000"),
        (2**28, "256Mi"),
        (True, "true"),
        ("bfloat16", "bfloat16"),
        (0.5, "0.5"),
    ],
)
def test_dimensions_are_short_but_exact(value: object, shown: str) -> None:
    assert formats.dimension(value) == shown


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("memory_bytes", 150323855360, "140 GiB"),
        ("device seconds", 240.0, "4 min 00 s"),
        ("worker_share", 0.66, "66%"),
        ("mig", False, "false"),
        ("compile_seconds", {"triton": 3.0}, "triton 3.0 s"),
        ("compute_capability", [9, 0], "9, 0"),
        ("max_samples", 60, "60"),
        ("note", None, "–"),
    ],
)
def test_a_name_tells_the_unit(name: str, value: object, shown: str) -> None:
    assert formats.named(value, name) == shown


def test_of_noise_only_what_a_candidate_differs_from_itself_is_told() -> None:
    near, far = (f"{formats.percent(NOISE.aa(us))} at {us:g} µs" for us in (10.0, 100.0))
    assert formats.named(NOISE.details, "noise") == f"A/A {near}, {far}"


@pytest.mark.parametrize("noise", [Noise().details, {}, {"aa": None}, {"aa": ["12%"]}, {"aa": {"10 µs": "a lot"}}])
def test_of_noise_that_nobody_measured_nothing_is_told(noise: Mapping[str, Any]) -> None:
    assert formats.named(noise, "noise") == formats.NONE


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(4.21, "4.2 s"), (59.97, "1 min 00 s"), (184, "3 min 04 s"), (7500, "2 h 05 min"), (None, "–")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_a_ratio_is_told_as_an_excess() -> None:
    assert [formats.excess(value) for value in (1.4, 1.004, 0.97)] == ["+40%", "+0.4%", "−3.0%"]
