"""What a decision can have considered, on either database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tuning_db import CandidateKey, Final, Protocol, Store
from tuning_db.considered import Considered
from tuning_db.records import now


@pytest.mark.few(1)
def test_finalists_and_what_was_tried_before_under_the_same_conditions(store: Store, make: Any) -> None:
    def tried(name: str, **values: Any) -> Any:
        return replace(make.trial(**values), candidate=CandidateKey(name, "f1", {}))

    run = store.start_run(make.environment, {"implementations": {}})
    first, at = tried("a.first", created=now() - timedelta(minutes=2)), now() - timedelta(minutes=1)
    hot = replace(make.protocol, regime="hot")
    longer = Protocol("cold", {"target_us": 1})
    store.add_trials(run, [
        first, tried("b.wrong", created=at, status="wrong_result"), tried("c.longer", created=at, protocol=longer),
        tried("d.later"), tried("e.hot", created=at, protocol=hot),
        replace(tried("f.elsewhere", created=at), problem=make.problem(rows=1)),
    ])  # fmt: skip
    decision = make.decision(created=at, trial_uid=first.uid)
    finals = [Final(CandidateKey("g.final", "f2", {}), "candidate", 0, 0, place, 1.0) for place in range(2)]
    assert store.publish(run, decision, [*finals, Final(None, "floor", 0, 0, 2, 1.0)])
    assert store.considered(decision.uid) == Considered(
        run,
        frozenset({("triton.row", "f1"), ("g.final", "f2")}),
        frozenset({("a.first", "f1"), ("b.wrong", "f1"), ("c.longer", "f1")}),
        has_trials=True,
        previous="",
    )
    for verdict, previous in (("replaced", "the one before"), ("new", "")):
        alone = make.decision(make.problem(rows=2), trial_uid="elsewhere", previous="the one before", verdict=verdict)
        store.publish(run, alone)
        only = frozenset({("triton.row", "f1")})
        assert store.considered(alone.uid) == Considered(run, only, frozenset(), False, previous)
    assert store.considered("0" * 32) is None
    found = store.run(run)
    assert found is not None
    assert found.details == {"implementations": {}}
    assert store.run("0" * 32) is None
