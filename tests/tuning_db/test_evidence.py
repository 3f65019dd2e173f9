"""What a decision says beside its ratios: the default's, with an interval, and ties."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tuning_db import Decision, Interval, InvalidRecordError, Store
from tuning_db.evidence import read_baselines


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


def test_decisions_of_before_have_none(make: Any) -> None:
    assert read_baselines({"torch.native": 2.0}) == ({"torch.native": 2.0}, None, ())
    decision: Decision = make.decision()
    assert (decision.default_ratio, decision.ties) == (None, ())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_an_interval_is_finite(bad: Any) -> None:
    with pytest.raises(InvalidRecordError):
        Interval(1.0, bad, 2.0)
