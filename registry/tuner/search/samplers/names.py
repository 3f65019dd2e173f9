"""Samplers by name, as ``tune --sampler`` takes them."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from ....errors import InvalidArgumentError
from ..joint_space import JointSpace
from .distinct import DistinctSampler
from .registry_sampler import RegistrySampler
from .snapped import SnappedSampler

DEFAULT = "registry"
ENTRY_POINTS = "kernel_registry_samplers"

MakeSampler = Callable[..., DistinctSampler]
"""Called with the joint space, ``starts`` and ``seed``, as a DistinctSampler's class is."""


def tpe(seed: int) -> BaseSampler:
    """Optuna's tree-structured Parzen estimator, set for conditional parameters and several trials at a time."""
    return optuna.samplers.TPESampler(multivariate=True, group=True, constant_liar=True, n_startup_trials=8, seed=seed)


def gp(seed: int) -> BaseSampler:
    """Optuna's Gaussian process, which models the implementation alone where there are several."""
    importlib.import_module("scipy")  # which Optuna asks for only when a search has begun
    return optuna.samplers.GPSampler(seed=seed)


_BUILT_IN: dict[str, Callable[..., BaseSampler]] = {
    DEFAULT: RegistrySampler,
    "gp": gp,
    "nsgaii": optuna.samplers.NSGAIISampler,
    "random": optuna.samplers.RandomSampler,
    "tpe": tpe,
}
"""The built-in samplers by name. CMA-ES and quasi-Monte Carlo are left out: they would sample categories at random."""


def sampler_named(name: str) -> MakeSampler:
    """Makes the sampler that a name stands for: a built-in one, a package's entry point, or ``module:name``.

    The name stands for a subclass of DistinctSampler, or for a class or function that makes any Optuna sampler (from a
    ``seed`` if it takes one), whose suggestions are snapped. Raises InvalidArgumentError for an unknown name, or for an
    object that makes no sampler.
    """
    named = _found(name)
    if isinstance(named, type) and issubclass(named, DistinctSampler):
        return named

    def snapped(space: JointSpace, *, starts: Any = None, seed: int = 0) -> DistinctSampler:
        return SnappedSampler(space, _made(name, named, seed), starts=starts, seed=seed)

    _made(name, named, 0)  # a fault is told before anything is tuned
    return snapped


def _found(name: str) -> Any:
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    module, _, attribute = name.partition(":")
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if name not in installed and not (module and attribute):
        known = ", ".join(sorted({*_BUILT_IN, *installed}))
        raise InvalidArgumentError(f"unknown sampler {name!r}", hint=f"known: {known}; any other is module:name")
    try:
        return installed[name].load() if name in installed else getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as fault:
        raise InvalidArgumentError(f"sampler {name!r}: {fault}", hint="is its module on PYTHONPATH?") from fault


def _made(name: str, make: Any, seed: int) -> BaseSampler:
    hint = "expected the class of an Optuna sampler, or a function that makes one, from a seed or from nothing"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            made = make(seed=seed) if "seed" in inspect.signature(make).parameters else make()
    except Exception as fault:  # whatever a stranger's sampler raises
        hint = f"pip install {fault.name}" if isinstance(fault, ModuleNotFoundError) else hint
        raise InvalidArgumentError(f"sampler {name!r}: {type(fault).__name__}: {fault}", hint=hint) from fault
    if not isinstance(made, BaseSampler):
        raise InvalidArgumentError(f"sampler {name!r}: it makes a {type(made).__name__}", hint=hint)
    return made
