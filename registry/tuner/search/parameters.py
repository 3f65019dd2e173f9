"""A candidate as Optuna's parameters: the implementation's name, and each of its values under that name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from ...problem import canonical_json

IMPLEMENTATION = "implementation"

ParameterChoice = None | bool | int | float | str
Domains = Mapping[str, Mapping[str, Sequence[Any]]]
"""The values of each parameter of each implementation."""


def parameter(implementation: str, name: str) -> str:
    """The name of an implementation's parameter in a study, e.g. ``triton.row.num_warps``."""
    return f"{implementation}.{name}"


def choices(values: Sequence[Any]) -> tuple[ParameterChoice, ...]:
    """The values as Optuna's choices, in their order.

    All values become texts where one is no plain value, or where Optuna takes two for equal, as True and 1.
    """
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    return tuple(values) if plain and len(set(values)) == len(values) else tuple(map(canonical_json, values))


def distributions(domains: Domains) -> dict[str, CategoricalDistribution]:
    """All parameters of a study: the implementation, and those of every implementation; a trial uses its own.

    Values are categorical: few domains of kernels are evenly spaced, and a sampler must not suggest values in between.
    """
    found = {IMPLEMENTATION: CategoricalDistribution(tuple(domains))}
    for implementation, own in domains.items():
        for name, values in own.items():
            found[parameter(implementation, name)] = CategoricalDistribution(choices(values))
    return found


def state_of(status: str, median_us: float | None, censored: bool) -> TrialState:
    """COMPLETE for a candidate that was timed, PRUNED for one that was given up early, FAIL for one without a time."""
    if status != "ok" or median_us is None or not 0 < median_us < math.inf:
        return TrialState.FAIL
    return TrialState.PRUNED if censored else TrialState.COMPLETE
