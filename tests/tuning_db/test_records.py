"""What makes two records the same, and what cannot be one."""

from __future__ import annotations

import dataclasses
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from tuning_db import CandidateKey, Environment, Final, InvalidRecordError, ProblemKey, Trial
from tuning_db.keys import canonical_json, digest, plain
from tuning_db.models import Instant

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
TREES = st.recursive(
    VALUES | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4
)


@given(st.dictionaries(st.text(), TREES))
def test_keys_do_not_depend_on_order_and_survive_json(value: dict[str, Any]) -> None:
    shuffled = dict(reversed(value.items()))
    assert digest(shuffled) == digest(value)
    assert digest(json.loads(canonical_json(value))) == digest(value)
    assert plain(value, "value") == value


@given(VALUES, VALUES)
def test_values_of_different_types_are_different_problems(left: Any, right: Any) -> None:
    same = ProblemKey("op", 1, {"n": left}) == ProblemKey("op", 1, {"n": right})
    assert same == (type(left) is type(right) and repr(left) == repr(right))


def test_true_is_not_one_and_one_is_not_one_point_zero() -> None:
    assert len({CandidateKey("a", "f", {"x": value}) for value in (True, 1, 1.0, "1")}) == 4
    assert len({Environment({"x": value}, {}) for value in (True, 1, 1.0, "1")}) == 4


def test_which_dimensions_are_static_is_no_part_of_the_identity() -> None:
    assert ProblemKey("op", 1, {"n": 1, "m": 2}, ("n",)) == ProblemKey("op", 1, {"m": 2, "n": 1}, ())
    assert ProblemKey("op", 1, {"n": 1, "m": 2}, ("n",)).static_key == '{"n":1}'


def test_neighbours_share_their_static_key() -> None:
    left, right = (ProblemKey("op", 1, {"rows": rows, "cols": 8, "dtype": "b"}, ("dtype", "cols")) for rows in (1, 2))
    assert left.static_key == right.static_key
    assert left != right


def test_records_are_data(make: Any) -> None:
    decision = make.decision()
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert json.dumps(dataclasses.asdict(make.problem()))


def test_tuples_are_lists_as_they_will_be_when_they_come_back() -> None:
    assert CandidateKey("a", "f", {"tile": (64, 128)}) == CandidateKey("a", "f", {"tile": [64, 128]})


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        (lambda m: m.problem(rows=object()), r"dims\['rows'\] is a builtins.object, which JSON does not have"),
        (lambda m: m.problem(rows=float("inf")), r"dims\['rows'\] is inf, expected a finite number"),
        (lambda m: m.problem(rows=[1]), r"dims\['rows'\] is \[1\], expected a number, text or boolean"),
        (lambda m: ProblemKey("", 1, {}), "problem.op is '', expected text"),
        (lambda m: ProblemKey("op", 1, {"n": 1}, ("m",)), r"static names \['m'\], which are not in dims \['n'\]"),
        (lambda m: Environment({1: 2}, {}), "hardware has the key 1, expected a string"),  # type: ignore[dict-item]
        (lambda m: Environment([], {}), "hardware is a list, expected a mapping"),  # type: ignore[arg-type]
        (lambda m: m.trial(median_us=float("nan")), "trial.median_us is nan, expected a finite number"),
        (lambda m: m.trial(samples=(1.0, None)), r"trial.samples\[1\] is None"),
        (lambda m: m.trial(status=""), "trial.status is ''"),
        (lambda m: m.trial(created=datetime(2026, 1, 1)), "no time zone"),
        (lambda m: m.decision(median_us=None), "decision.median_us is None"),
        (lambda m: m.decision(median_us="3"), "decision.median_us is '3'"),
        (lambda m: Final(None, "winner", 0, 0, 0, 1.0), "final.role is 'winner'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_stored_is_refused_at_once(make: Any, action: Any, fault: str) -> None:
    with pytest.raises(InvalidRecordError, match=fault):
        action(make)


def test_numpy_numbers_become_plain_ones(make: Any) -> None:
    numpy = pytest.importorskip("numpy")
    trial: Trial = make.trial(samples=tuple(numpy.array([1.0, 2.0])), median_us=numpy.float64(1.5))
    assert {type(value) for value in (*trial.samples, trial.median_us)} == {float}
    with pytest.raises(InvalidRecordError, match=r"numpy\.int64"):
        make.problem(rows=numpy.int64(4))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("2026-01-02 03:04:05.000006", datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-13-02 03:04:05", None),
        ("never", None),
        ("", None),
        (5, None),
        (b"2026-01-02 03:04:05", None),
        (None, None),
    ],
)
def test_what_a_file_holds_is_an_instant_in_utc_or_none(stored: object, expected: datetime | None) -> None:
    query = text("SELECT :stored AS created").columns(created=Instant)
    with create_engine("sqlite://").connect() as connection:
        found = connection.execute(query, {"stored": stored}).scalar()
    assert found == expected
    assert found is None or found.tzinfo is UTC
