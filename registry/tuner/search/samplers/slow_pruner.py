"""The pruner of the tuner's searches: a candidate that is far slower than the best is not sampled to the end."""

from __future__ import annotations

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState

from ...measure.protocol import TimingProtocol
from ...measure.series import is_hopeless


class SlowPruner(BasePruner):
    """Prunes a trial whose first samples are all far slower than the study's best time, as ``protocol.hopeless`` says.

    An objective reports each sample in µs as a step of its own. The tuner's worker asks the same rule between batches
    of samples, in its own process: an answer from the study would take longer than the samples.
    """

    def __init__(self, protocol: TimingProtocol | None = None) -> None:
        self._protocol = protocol or TimingProtocol("perf_counter", 0)

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the samples reported so far, at least ``protocol.min_censor``, leave no hope."""
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best_us = min((one.value for one in done if one.value is not None), default=None)
        return is_hopeless(list(trial.intermediate_values.values()), self._protocol, best_us)
