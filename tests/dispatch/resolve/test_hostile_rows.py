"""Rows that nobody's tuner wrote: each is skipped by itself, with one warning, and the others answer."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from registry import DispatchWarning
from registry.dispatch.dispatcher import Dispatcher
from tuning_db import Decision

from ...tiers import one_of_each

EXACT = {"rows": 8, "cols": 16, "dtype": "float32"}
NEAR = {**EXACT, "rows": 64}
CALLED = {"exact": {"block": 2}, "nearest": {"block": 4}}
BYTES = "CAST(x'7b22ff' AS TEXT)"

Damage = Callable[[str, Any], None]


@pytest.fixture
def damage(dispatcher: Dispatcher, told: Any, publish: Callable[..., Decision], tmp_path: Path) -> Damage:
    """Two winners, the nearer of which is damaged: an assignment of SQL in a table's row that only it refers to."""
    dispatcher.register(told("a.tuned"))
    publish(EXACT, "a.tuned", CALLED["exact"], software={"torch": "another"})
    publish(NEAR, "a.tuned", CALLED["nearest"])

    def damaged(column: str, value: Any) -> None:
        table, _, name = column.partition(".")
        with closing(sqlite3.connect(tmp_path / "tuning.db")) as raw:
            raw.execute("PRAGMA foreign_keys=OFF")
            where = "decision_id" if table == "winner" else "id"
            sql = f"UPDATE {table} SET {name} = {value if isinstance(value, str) else '?'} WHERE {where} = 1"
            raw.execute(sql, () if isinstance(value, str) else (value[0],))
            raw.commit()

    return damaged


def answer(dispatcher: Dispatcher) -> tuple[str, dict[str, Any], list[str]]:
    """Who answers, with which configuration, and the warnings."""
    x = torch.randn(8, 16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
        dispatcher.call("softmax", torch.randn(9, 16))
        told = dispatcher.explain("softmax", x)
    return told.step, dict(told.config), [str(each.message) for each in caught if each.category is DispatchWarning]


@pytest.mark.parametrize(
    ("column", "value"),
    one_of_each(
        [
            ("problem.dims", "'{half'"),
            ("problem.dims", BYTES),
            ("problem.dims", "'[8, 16]'"),
            ("problem.dims", "'\"text\"'"),
            ("problem.dims", """'{"rows": "abc", "cols": 16, "dtype": "float32"}'"""),
            ("problem.dims", """'{"rows": [8], "cols": 16, "dtype": "float32"}'"""),
            ("problem.dims", """'{"rows": null, "cols": 16, "dtype": "float32"}'"""),
            ("problem.dims", """'{"rows": NaN, "cols": 16, "dtype": "float32"}'"""),
            ("problem.dims", """'{"rows": 1e999, "cols": 16, "dtype": "float32"}'"""),
            ("problem.dims", f"""'{{"rows": 1{"0" * 400}, "cols": 16, "dtype": "float32"}}'"""),
            ("problem.dims", f"""'{{"rows": 1{"0" * 5000}, "cols": 16, "dtype": "float32"}}'"""),
            ("problem.dims", """'{"rows": 8, "cols": [16], "dtype": "float32"}'"""),
            ("problem.dims", f"'{'[' * 200_000}'"),
            ("problem.dims", """'{"rows": 8, "cols": 17, "dtype": "float32"}'"""),
            ("problem.op_version", "'two'"),
            ("candidate.config", "'{half'"),
            ("candidate.config", BYTES),
            ("candidate.config", "'[1]'"),
            ("candidate.config", f"'{'[' * 200_000}'"),
            ("implementation.name", BYTES),
            ("implementation.name", "''"),
            ("software.identity", "'{half'"),
            ("software.identity", "'[]'"),
            ("winner.software_id", "77"),
            ("winner.software_id", "'1; DROP TABLE decision'"),
            ("decision.candidate_id", "'two'"),
            ("decision.candidate_id", "77"),
        ],
        lambda column, value: column,
    ),
    ids=lambda value: str(value)[:40],
)
@pytest.mark.few(3)
def test_a_row_that_cannot_be_decoded_is_skipped_with_one_warning(
    dispatcher: Dispatcher, publish: Any, damage: Damage, column: str, value: str
) -> None:
    if column == "implementation.name":  # the other winner has an implementation of its own
        publish(NEAR, "a.tuned", CALLED["nearest"], fingerprint="1 ", software={"torch": "a third"})
        dispatcher.catalog.implementation("softmax", "a.tuned").source = "1 "  # type: ignore[attr-defined]
    damage(column, value)
    step, config, told = answer(dispatcher)
    assert (step, config) == ("nearest", CALLED["nearest"])
    (warning,) = told
    assert warning.startswith("a winner is skipped: ")
    assert "tuning.db: the winner " in warning
    assert len(warning) < 500


@pytest.mark.parametrize(
    ("column", "value"),
    one_of_each(
        [
            ("decision.baselines", "'{\"\": 1.0}'"),
            ("decision.created", "'0001-01-01 00:00:00.000000'"),
            ("decision.verdict", "''"),
            ("problem.static_key", "'{half'"),
            ("problem.static_key", "'{}'"),
            ("problem.static_key", "'[1]'"),
            ("problem.static_key", """'{"cols": [16], "dtype": "float32"}'"""),
            ("problem.static_key", BYTES),
            ("problem.static_key", "char(30)"),
            ("decision.baselines", "'{half'"),
            ("decision.baselines", "'[1]'"),
            ("decision.baselines", BYTES),
            ("decision.created", "'never'"),
            ("decision.median_us", "'fast'"),
            ("decision.ties", "'1'"),
            ("protocol.details", "'{half'"),
        ],
        lambda column, value: column,
    ),
    ids=lambda value: str(value)[:40],
)
@pytest.mark.few(3)
def test_what_no_call_needs_hinders_none(dispatcher: Dispatcher, damage: Damage, column: str, value: str) -> None:
    damage(column, value)
    assert answer(dispatcher) == ("exact", CALLED["exact"], [])
    told = dispatcher.explain("softmax", torch.randn(8, 16))
    assert (told.evidence is None) == ("figures cannot be read" in str(told))


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["rows", "cols", "dtype", "block", ""]), inner),
    max_leaves=5,
)


ROWS = {
    "column": st.sampled_from(
        ["problem.dims", "problem.op_version", "candidate.config", "software.identity", "winner.software_id"]
    ),
    "value": st.binary() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats() | JSONS.map(str),
}
FEW, MANY = (
    settings(max_examples=most, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    for most in (25, 60)
)


@FEW
@given(**ROWS)
@example(column="problem.dims", value='{"rows": 64, "cols": 16}, {"dtype": 1}')
def test_whatever_a_row_holds_every_call_is_answered(
    dispatcher: Dispatcher, damage: Damage, tmp_path: Path, column: str, value: Any
) -> None:
    check_row(dispatcher, damage, tmp_path, column, value)


@pytest.mark.thorough
@MANY
@given(**ROWS)
def test_whatever_many_rows_hold_every_call_is_answered(
    dispatcher: Dispatcher, damage: Damage, tmp_path: Path, column: str, value: Any
) -> None:
    check_row(dispatcher, damage, tmp_path, column, value)


def check_row(dispatcher: Dispatcher, damage: Damage, tmp_path: Path, column: str, value: Any) -> None:
    """A call of each kind is answered, whatever stands in the column."""
    try:
        damage(column, (value,))
    except (sqlite3.IntegrityError, UnicodeEncodeError):  # no row can hold it
        return
    dispatcher.configure(database=str(tmp_path / "tuning.db"))
    step, config, told = answer(dispatcher)
    assert CALLED.get(step) == config or step == "default"
    assert len(told) < 2
