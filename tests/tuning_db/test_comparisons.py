"""A decision's comparison with the default, with its interval, and its ties: columns since schema version 2."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tuning_db import Decision, Interval, InvalidRecordError, Store


def test_it_is_stored_and_travels(store: Store, make: Any) -> None:
    decision: Decision = make.decision(
        baselines={"torch.native": 2.0}, default_ratio=Interval(1.4, 1.36, 1.44), ties=("triton.row BLOCK=8",)
    )
    store.publish(store.start_run(make.environment), decision)
    (found,) = store.winners()
    assert found == decision
    assert found.baselines == {"torch.native": 2.0}
    stream = io.StringIO()
    store.export(stream)
    assert '"default_ratio":{"high":1.44,"low":1.36,"value":1.4}' in stream.getvalue()


@pytest.mark.few(1)
def test_a_decision_without_them_comes_back_without_them(store: Store, make: Any) -> None:
    store.publish(store.start_run(make.environment), make.decision(baselines={"torch.native": 2.0}))
    (found,) = store.winners()
    assert (found.baselines, found.default_ratio, found.ties) == ({"torch.native": 2.0}, None, ())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_an_interval_is_finite(bad: Any) -> None:
    with pytest.raises(InvalidRecordError):
        Interval(1.0, bad, 2.0)
