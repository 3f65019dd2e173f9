"""Lines of an exchange file that nobody's tuner wrote: refused by name, or stored and read back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuning_db import ExchangeError, Final, Interval, Store, TuningDBError

from ..tiers import one_of_each

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, 2**70, -1, 0, 10**400, 10**5000]),
    st.floats(),
    st.text(),
    st.sampled_from(["", "\0", "\ud800", "a" * 300, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.floats(), max_size=2),
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, make: Any) -> tuple[str, ...]:
    """An export of a trial, and of a decision that is the winner."""
    with Store.open(tmp_path_factory.mktemp("lines") / "from.db") as filled:
        run = filled.start_run(make.environment)
        trial = make.trial()
        filled.add_trials(run, [trial])
        decision = make.decision(
            ratio=1.1, lo=1.0, hi=1.2, aa=0.01, baselines={"torch.native": 1.5}, default_ratio=Interval(1.2, 1.1, 1.3)
        )
        filled.publish(run, decision, [Final(make.candidate(), "candidate", 0, 0, 0, 9.5)])
        stream = io.StringIO()
        filled.export(stream)
    return tuple(stream.getvalue().splitlines())


@pytest.fixture(scope="module")
def into(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store that stays empty, since all that it is given is refused."""
    with Store.open(tmp_path_factory.mktemp("into") / "into.db") as opened:
        yield opened


def spoilt(lines: Sequence[str], kind: str, spoil: Callable[[Any], Any]) -> tuple[int, io.StringIO]:
    """(number of the line, the file) with the record of that kind changed."""
    place = next(index for index, text in enumerate(lines) if json.loads(text)["kind"] == kind)
    record = json.loads(lines[place])
    spoil(record)
    text = json.dumps(record).replace('"BIG"', "1" + "0" * 400)
    return place + 1, io.StringIO("\n".join([*lines[:place], text, *lines[place + 1 :]]))


@pytest.mark.parametrize(
    ("kind", "spoil", "fault"),
    [
        ("trial", lambda r: r["trial"].update(median_us=0), r"trial\.median_us is 0\.0, expected more than 0"),
        ("trial", lambda r: r["trial"].update(uid="u" * 65), r"trial\.uid is 'uuu.*expected 1 to 64 characters"),
        ("trial", lambda r: r["trial"].update(status="\0"), r"trial\.status is .*without NUL"),
        (
            "trial",
            lambda r: r["trial"].update(created="1969-12-31T23:59:59+00:00"),
            "expected a time from 1970 to 9998",
        ),
        ("trial", lambda r: r["trial"].update(created="0001-01-01T00:00:00+14:00"), "no calendar has in UTC"),
        ("decision", lambda r: r["decision"].update(median_us=0), r"decision\.median_us is 0\.0, expected more than 0"),
        ("decision", lambda r: r["decision"].update(median_us=-1.5), r"decision\.median_us is -1\.5, expected more"),
        ("decision", lambda r: r["decision"].update(ratio=0), r"decision\.ratio is 0\.0, expected more than 0"),
        ("decision", lambda r: r["decision"].update(baselines={"": 1.0}), r"baselines: the name is '', expected 1 to"),
        ("decision", lambda r: r["decision"].update(baselines={"a": 0}), r"baselines\['a'\] is 0\.0, expected more"),
        ("decision", lambda r: r["decision"]["default_ratio"].update(low=0), r"decision\.default_ratio is 0\.0"),
        ("decision", lambda r: r["decision"].update(created="0001-01-01T00:00:00+00:00"), "1970 to 9998"),
        ("decision", lambda r: r["decision"]["problem"].update(op_version=2**70), "op_version is .* expected a number"),
        ("decision", lambda r: r["decision"]["problem"].update(op_version=-1), "op_version is -1, expected a number"),
        (
            "decision",
            lambda r: r["decision"]["problem"]["dims"].update(rows="abc"),
            r"dims\['rows'\] is 'abc', expected",
        ),
        (
            "decision",
            lambda r: r["decision"]["problem"]["dims"].update(rows="BIG"),
            r"dims\['rows'\] is a number of 1329",
        ),
        ("trial", lambda r: r["trial"]["problem"]["dims"].update(rows=-3), r"dims\['rows'\] is -3, expected a size"),
        (
            "decision",
            lambda r: r["decision"]["problem"]["dims"].update(rows=0),
            r"dims\['rows'\] is 0, expected a size",
        ),
        ("decision", lambda r: r["decision"]["problem"]["dims"].update(rows=0.5), r"dims\['rows'\] is 0\.5, expected"),
        (
            "decision",
            lambda r: r["decision"]["candidate"]["config"].update(threads=[[1]]),
            r"decision\.candidate\.config\['threads'\] is \[\[1\]\], expected a number, text or boolean",
        ),
        ("trial", lambda r: r["trial"]["candidate"]["config"].update(a={}), r"trial\.candidate\.config\['a'\] is \{\}"),
        (
            "decision",
            lambda r: r["finals"][0]["candidate"]["config"].update(a=None),
            r"config\['a'\] is None, expected",
        ),
        (
            "run",
            lambda r: r["run"]["environment"]["hardware"].update(multiprocessors="x"),
            r"run\.environment\.hardware\['multiprocessors'\] is 'x', expected an integer of at least 1",
        ),
        (
            "trial",
            lambda r: r["trial"]["environment"]["hardware"].update(multiprocessors=0),
            "is 0, expected an integer",
        ),
        ("decision", lambda r: r["decision"]["environment"]["hardware"].update(memory_bytes=True), "is True, expected"),
        ("run", lambda r: r["run"]["environment"]["hardware"].update(name=["H200"]), r"is \['H200'\], expected text"),
        (
            "trial",
            lambda r: r["trial"]["environment"]["software"].update(torch=["2"]),
            r"\['torch'\] is \['2'\], expected",
        ),
        ("decision", lambda r: r["finals"][0].update(block=2**40), "finals.block is 1099511627776, expected 0 to"),
        ("run", lambda r: r["run"].update(started="0001-01-01T00:00:00+00:00"), r"run\.started is 0001-01-01"),
    ],
)
def test_what_no_tuner_writes_is_refused(
    into: Store, lines: Sequence[str], kind: str, spoil: Callable[[Any], Any], fault: str
) -> None:
    number, stream = spoilt(lines, kind, spoil)
    with pytest.raises(ExchangeError, match=f"^line {number}: .*{fault}") as caught:
        into.load(stream)
    assert len(caught.value.message) < 400
    assert into.statistics().runs == 0


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(place for name, item in inner for place in places(item, (*before, name)))]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("url", one_of_each(["sqlite", "postgresql"]), indirect=True)
def test_a_changed_value_is_refused_or_stored_and_read_back(
    url: str, lines: Sequence[str], data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, len(lines) - 1))
    record = json.loads(lines[number])
    *path, last = data.draw(st.sampled_from([place for place in places(record) if place]))
    inner = record
    for name in path:
        inner = inner[name]
    inner[last] = data.draw(HOSTILE)
    try:
        text = json.dumps(record)
    except ValueError:  # Python writes no number of so many digits
        text = '{"kind": "trial", "run": 1' + "0" * 5000 + "}"
    stream = io.StringIO("\n".join([*lines[:number], text, *lines[number + 1 :]]))
    with Store.open(url) as store:
        try:
            store.load(stream)
        except TuningDBError:
            return
        store.trials(), store.winners(), store.runs()
        assert store.export(io.StringIO()) > 0
