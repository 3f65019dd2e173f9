"""Implementations that stand for others in a run whose candidates are all in sandboxes: they answer, and never run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import ModuleType

from ...artifact import Built
from ...device import Device
from ...errors import UnsupportedError
from ...fingerprint import PythonText
from ...implementation import Implementation, Run
from ...problem import Problem, TensorSpec, Value
from ...space import Config, Space, config_key
from .description import ToldAnswers, ToldImplementation, dims_key

_UNTOLD = ToldAnswers(unsupported=("its plugin file was not asked about this problem",))


class _StandIn(Implementation):
    """An implementation that is compiled where it runs, in a sandbox, and for each size anew."""

    capturable = False
    transfers = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise UnsupportedError(f"{self.name} runs in a sandbox only, and this process is none")


class DescribedStandIn(_StandIn):
    """Stands for an implementation in a plugin file that is not loaded: it gives the answers that the file told.

    The space holds the configurations that were told. The fingerprint is of the whole file.
    """

    def __init__(self, told: ToldImplementation) -> None:
        vars(self).update(op=told.op, name=told.name, device_types=told.devices, added=_supported(told.answers))
        self.file = told.file
        self._answers = told.answers
        self._source = told.file.read_text(encoding="utf-8")

    def _of(self, problem: Problem) -> ToldAnswers:
        return self._answers.get(dims_key(problem), _UNTOLD)

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        return self._of(problem).unsupported

    def space(self, problem: Problem, device: Device) -> Space:
        configs = self._of(problem).configs
        if not configs:
            return Space()
        domains = {name: list(dict.fromkeys(one[name] for one in configs)) for name in configs[0]}
        told = set(map(config_key, configs))
        return Space(**domains).require("one that its plugin file told", lambda one: config_key(one) in told)

    def default(self, problem: Problem, device: Device) -> Config:
        configs = self._of(problem).configs
        return configs[0] if configs else {}

    def preference(self, problem: Problem, device: Device) -> float:
        return self._of(problem).preference

    def sources(self) -> Iterable[ModuleType | str]:
        return [PythonText(self._source)]

    @property
    def definition(self) -> tuple[str, str]:
        return str(self.file), self.name


def _supported(answers: Mapping[str, ToldAnswers]) -> dict[str, tuple[Value, ...]]:
    """The values of each dimension at which an implementation told that it runs, those of ``Op.added`` among them."""
    found: dict[str, tuple[Value, ...]] = {}
    for key, told in answers.items():
        for name, value in json.loads(key).items() if not told.unsupported else ():
            found[name] = (*found.get(name, ()), value)
    return found


class InstalledStandIn(_StandIn):
    """Stands for an installed implementation, whose answers and fingerprint it gives."""

    def __init__(self, installed: Implementation) -> None:
        vars(self).update(
            op=installed.op, name=installed.name, device_types=installed.device_types,
            deterministic=installed.deterministic, added=dict(installed.added),
        )  # fmt: skip
        self.installed = installed

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        return self.installed.unsupported(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        return self.installed.space(problem, device)

    def default(self, problem: Problem, device: Device) -> Config:
        return self.installed.default(problem, device)

    def preference(self, problem: Problem, device: Device) -> float:
        return self.installed.preference(problem, device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return self.installed.scratch(problem, config, device)

    def fingerprint(self) -> str:
        return self.installed.fingerprint()

    @property
    def definition(self) -> tuple[str, str]:
        return self.installed.definition
