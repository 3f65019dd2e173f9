"""What a tuning run needs so that all its candidates run in sandboxes: a catalog of stand-ins, and options."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import RegistryError
from ...problem import Problem
from ...tuner.limits import Limits
from ...tuner.measure.protocol import REGIME
from ...tuner.options import TuneOptions
from ...tuner.workers.device_client import WorkerProgram
from ..bubblewrap import bubblewrap
from ..limits import SandboxLimits
from ..trial import sandboxed_protocol
from .description import ToldImplementation, described
from .stand_in_catalog import StandInCatalog

_WORKER = "registry.sandbox.tuning.worker_process"
_MEASURE_US = 1_000_000.0
_SLACK_S = 60.0


def sandboxed_catalog(
    files: Sequence[Path],
    problems: Sequence[Problem],
    catalog: Catalog,
    device: Device,
    limits: SandboxLimits | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> StandInCatalog:
    """The catalog of a run in sandboxes on these problems, for which each plugin file is asked in a sandbox.

    Raises SandboxError where there is no sandbox on this machine, PluginError for a file that cannot take part.
    """
    bubblewrap()
    told: list[ToldImplementation] = []
    for file in files:
        found = described(file, problems, device, limits or SandboxLimits())
        told += found
        for one in found:
            _note_parts(one, note)
    return StandInCatalog(catalog, told)


def _note_parts(told: ToldImplementation, note: Callable[[str], None]) -> None:
    for answers in told.answers.values():
        if answers.of > len(answers.configs):
            note(f"{told.op} {told.name}: {len(answers.configs)} of its {answers.of} configurations are searched")
            return


def sandboxed_options(
    options: TuneOptions, catalog: StandInCatalog, device: Device, limits: SandboxLimits | None = None
) -> TuneOptions:
    """``options`` for a run in sandboxes. Raises RegistryError for a regime that requests cannot be timed in."""
    if options.regime != REGIME:
        raise RegistryError(
            f"--sandbox with --regime {options.regime}: each call of a request has inputs of its own, which are cold",
            hint=f"expected {REGIME}",
        )
    limits = limits or SandboxLimits()
    arguments = json.dumps(catalog.plugin_files()), json.dumps(limits.as_data())
    load, step = limits.load_s + _SLACK_S, 2 * limits.run_s + _SLACK_S
    return replace(
        options,
        program=WorkerProgram(_WORKER, arguments),
        protocol=sandboxed_protocol(device, _MEASURE_US),
        limits=Limits(load=load, verify=step, measure=step, memory_bytes=options.limits.memory_bytes),
    )
