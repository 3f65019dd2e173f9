"""Samplers by name, as ``tune --sampler`` takes them."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from ....errors import InvalidArgumentError, UnknownNameError
from ..joint_space import JointSpace
from .distinct import DistinctSampler
from .registry_sampler import RegistrySampler
from .snapped import SnappedSampler

ENTRY_POINTS = "kernel_registry_samplers"
DEFAULT = "registry"

_STARTS = 8


def tpe(seed: int) -> BaseSampler:
    """The tree-structured Parzen estimator, as it suits conditional parameters and several trials at a time."""
    return optuna.samplers.TPESampler(
        multivariate=True, group=True, constant_liar=True, n_startup_trials=_STARTS, seed=seed
    )


def gp(seed: int) -> BaseSampler:
    """Optuna's Gaussian process, which models the implementation alone where there are several."""
    importlib.import_module("scipy")  # Optuna asks for it when the search has begun
    return optuna.samplers.GPSampler(seed=seed)


_BUILT_IN: dict[str, Callable[..., BaseSampler]] = {
    DEFAULT: RegistrySampler,
    "gp": gp,
    "nsgaii": optuna.samplers.NSGAIISampler,
    "random": optuna.samplers.RandomSampler,
    "tpe": tpe,
}
"""CMA-ES and quasi-Monte Carlo are not among them: they model no categorical parameter, and would sample at random."""


class NamedSampler:
    """The sampler that a name stands for: a built-in one, an installed package's entry point, or ``module:name``.

    What is named is a DistinctSampler's class, or a class or function that makes any Optuna sampler, from a ``seed`` if
    it takes one. Raises UnknownNameError for a name that stands for nothing and InvalidArgumentError for what makes no
    sampler.
    """

    def __init__(self, name: str = DEFAULT) -> None:
        self.name = name
        self._make = _found(name)
        self._is_distinct = isinstance(self._make, type) and issubclass(self._make, DistinctSampler)
        if not self._is_distinct:
            self._plain(0)

    def over(self, space: JointSpace, starts: Iterable[int], seed: int) -> DistinctSampler:
        """The sampler over a problem's candidates."""
        if self._is_distinct:
            made = self._make(space, starts=starts, seed=seed)
            assert isinstance(made, DistinctSampler)
            return made
        return SnappedSampler(space, self._plain(seed), starts=starts, seed=seed)

    def _plain(self, seed: int) -> BaseSampler:
        try:
            takes_seed = "seed" in inspect.signature(self._make).parameters
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made = self._make(seed=seed) if takes_seed else self._make()
        except ModuleNotFoundError as fault:
            raise InvalidArgumentError(f"sampler {self.name!r}: {fault}", hint=f"pip install {fault.name}") from fault
        except Exception as fault:  # whatever a stranger's sampler raises
            raise _unusable(self.name, f"{type(fault).__name__}: {fault}") from fault
        if not isinstance(made, BaseSampler):
            raise _unusable(self.name, f"it makes a {type(made).__name__}, which is no Optuna sampler")
        return made


def _found(name: str) -> Any:
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    module, colon, attribute = name.partition(":")
    if name not in installed and not (colon and module and attribute):
        raise UnknownNameError("sampler", name, [*_BUILT_IN, *installed, "module:name"])
    try:
        return installed[name].load() if name in installed else getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as fault:
        raise _unusable(name, str(fault)) from fault


def _unusable(name: str, fault: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"sampler {name!r}: {fault}",
        hint="expected the class of an Optuna sampler, or a function that makes one, from a seed or from nothing",
    )
