"""Runs that serve every size: bound once for all problems of an op that differ in dynamic dimensions only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from ...artifact import Signature
from ...contract import Op
from ...device import Device
from ...implementation import Implementation, Run
from ...problem import Argument, Arguments, Problem, TensorSpec, exact
from ...space import Config

MOST_RUNS = 1024
"""Per op; the oldest is dropped and bound again."""


class _SizelessRun(NamedTuple):
    """A run, the arguments that it was bound for, and its implementation, which a key knows by its id."""

    run: Run
    arguments: Arguments
    implementation: Implementation


class SizelessRuns:
    """Runs of one op's implementations that say ``any_size``, by configuration and all of a problem that is no size."""

    def __init__(self, op: Op, most: int = MOST_RUNS) -> None:
        self._dynamic = op.dynamic
        self._most = most
        self._runs: dict[Hashable, _SizelessRun] = {}

    def get(
        self, implementation: Implementation, config: Config, problem: Problem, signature: Signature, device: Device
    ) -> Run | None:
        """The run that was bound for another size, if it was bound by the attributes that these arguments have.

        What it was bound by counts as read of these arguments, too.
        """
        found = self._runs.get(self._key(implementation, config, problem, signature, device))
        if found is None:
            return None
        for name in found.arguments.read:
            if exact(signature.arguments.values[name]) != exact(found.arguments.all[name]):
                return None
        return found.run

    def put(
        self,
        implementation: Implementation,
        config: Config,
        problem: Problem,
        signature: Signature,
        device: Device,
        run: Run,
    ) -> None:
        """Keep a run that was bound for these arguments."""
        key = self._key(implementation, config, problem, signature, device)
        self._runs[key] = _SizelessRun(run, signature.arguments, implementation)
        while len(self._runs) > self._most:
            self._runs.pop(next(iter(list(self._runs))), None)

    def clear(self) -> None:
        """Drop all runs."""
        self._runs = {}

    def _key(
        self, implementation: Implementation, config: Config, problem: Problem, signature: Signature, device: Device
    ) -> Hashable:
        return (
            id(implementation),
            tuple([(name, exact(value)) for name, value in config.items()]),
            tuple([exact(value) for name, value in problem.dims.items() if name not in self._dynamic]),
            signature.arguments.gradient,
            tuple([_kind(value) for value in signature.arguments.all.values()]),
            device.type,
            device.index,
        )


def _kind(value: Argument) -> Hashable:
    """All of an argument that a trait may tell."""
    if isinstance(value, TensorSpec):
        return value.dtype, len(value.shape), value.layout, value.alignment
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value).__name__
