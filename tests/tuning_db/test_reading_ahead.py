"""An import reads ahead in another thread: in order, one part at most, and with every fault told where it belongs."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tuning_db import ExchangeError, Store, TuningDBError
from tuning_db.exchange import parts
from tuning_db.exchange.format import RunLine, WinnerLine, line
from tuning_db.exchange.parts import ahead
from tuning_db.records import StoredRun, now


def test_items_come_in_order_one_ahead_from_one_other_thread() -> None:
    made: list[int] = []
    makers: set[int] = set()

    def numbers() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            makers.add(threading.get_ident())
            yield number

    for place, number in enumerate(ahead(numbers())):
        assert number == place
        assert len(made) <= place + 2
    assert made == list(range(20))
    assert len(makers) == 1
    assert threading.get_ident() not in makers


def test_a_fault_comes_behind_what_was_made_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield from range(3)
        raise ExchangeError("line 4: odd")

    found: list[int] = []
    with pytest.raises(ExchangeError, match="line 4"):
        found.extend(ahead(numbers()))
    assert found == [0, 1, 2]


def test_who_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    items = ahead(iter(range(100)))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before


@pytest.mark.few(1)
def test_a_bad_line_behind_many_parts_leaves_the_database_as_it_was(
    store: Store, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "TOGETHER", 4)
    before, threads = store.statistics(), threading.active_count()
    runs = [line(RunLine(run=StoredRun(f"{number:032x}", make.environment, now()))) for number in range(30)]
    header = line(parts.HeaderLine())
    with pytest.raises(ExchangeError, match="line 32"):
        store.load(io.StringIO("".join([header, *runs, "{}\n"])))
    with pytest.raises(TuningDBError, match="line 32: the decision 'nowhere'"):
        store.load(io.StringIO("".join([header, *runs, line(WinnerLine(decision="nowhere"))])))
    assert store.statistics().runs == before.runs
    assert threading.active_count() == threads
    assert store.load(io.StringIO("".join([header, *runs]))) == 30
