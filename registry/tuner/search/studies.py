"""The Optuna studies of a run: made one a problem, by the sampler and in the storage that the user chose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend

from ...errors import InvalidArgumentError
from ..planning.problems import ProblemPlan
from .samplers import RegistrySampler, SlowPruner
from .samplers.names import MakeSampler


@dataclass(frozen=True)
class Studies:
    """Makes a run's studies. ``storage``: where Optuna keeps them, None for memory; the tuning database has all.

    ``run`` distinguishes the studies of several runs in one storage.
    """

    sampler: MakeSampler = RegistrySampler
    storage: BaseStorage | None = None
    run: str = ""

    def create(self, plan: ProblemPlan, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
        name = None if self.storage is None else f"{plan.problem}, run {self.run}"
        with _quiet():
            return optuna.create_study(
                storage=self.storage, study_name=name, sampler=sampler, pruner=SlowPruner(), direction="minimize"
            )


def open_storage(place: str) -> BaseStorage | None:
    """The storage at an SQLAlchemy URL, or a journal in the file named; None for "".

    Raises InvalidArgumentError for a place that cannot be used.
    """
    try:
        if "://" in place:
            with _quiet():
                return get_storage(place)
        return JournalStorage(JournalFileBackend(place)) if place else None
    except Exception as fault:  # faults of the file, the database or its driver
        raise InvalidArgumentError(
            f"storage {place!r}: {type(fault).__name__}: {fault}",
            hint="expected a file, or an SQLAlchemy URL, e.g. sqlite:///studies.db",
        ) from fault


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without Optuna's log lines about created studies."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
