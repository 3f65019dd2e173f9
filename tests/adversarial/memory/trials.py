"""Trials of the implementations of a plugin file, in this process: what the search does, without a run around it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.jobs import Entrant, Outcome, TrialJob
from registry.tuner.measure.protocol import REGIME, TimingProtocol
from registry.tuner.workers.worker import Worker

from ...conftest import block_plugins

CPU = Device.of("cpu")


class Trials:
    """Tries implementations of a file beside this one, by their names."""

    def __init__(self, plugin: str, device: Device = CPU, regime: str = REGIME) -> None:
        with pytest.MonkeyPatch.context() as patch:
            block_plugins(patch)
            self.catalog = Catalog()
            self.catalog.load_file(Path(__file__).with_name(plugin))
            self.catalog.ops()
        self._device = device
        self._protocol = dict(TimingProtocol.of(device, regime).details)

    def module_of(self, name: str, op: str = "square") -> Any:
        """The plugin file's module, in which the implementation of that name is defined."""
        return sys.modules[type(self.catalog.implementation(op, name)).__module__]

    def of(self, name: str, problem: Problem, seed: int = 0) -> Outcome:
        """The outcome of a trial of an implementation that has no space, in a new worker."""
        job = TrialJob(1, problem.op, dict(problem.dims), Entrant(name, {}), self._protocol, seed, None)
        return Worker(self.catalog, self._device).trial(job, lambda step: None)
