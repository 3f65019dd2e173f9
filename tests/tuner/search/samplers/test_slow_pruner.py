"""A study prunes by the rule that the worker samples by."""

from __future__ import annotations

import optuna
import pytest

from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.measure.series import HOPELESS, reason_to_stop
from registry.tuner.search.samplers import SlowPruner

PROTOCOL = TimingProtocol("perf_counter", 0)


@pytest.mark.parametrize("samples", [[21.0, 22.0], [21.0, 22.0, 23.0], [21.0, 19.0, 23.0], [21.0] * 6, [9.0] * 3])
def test_a_trial_is_pruned_where_the_worker_gives_up(samples: list[float]) -> None:
    study = optuna.create_study(pruner=SlowPruner(PROTOCOL))
    study.tell(study.ask(), 10.0)
    trial = study.ask()
    for step, us in enumerate(samples):
        trial.report(us, step)
    assert trial.should_prune() is (reason_to_stop(samples, 0.0, PROTOCOL, 10.0) == HOPELESS)
    assert trial.should_prune() is (samples == [21.0, 22.0, 23.0])


def test_the_first_trial_is_never_pruned() -> None:
    trial = optuna.create_study(pruner=SlowPruner()).ask()
    for step in range(4):
        trial.report(1e9, step)
    assert not trial.should_prune()
