"""Plugin files described without running them here: a sandbox runs each, and what it tells is checked as data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...device import Device
from ...errors import InvalidDefinitionError, PluginError, RegistryError
from ...problem import Problem, canonical_json
from ...space import Config
from ...untrusted.visible import visible
from ..entrant import SandboxedEntrant
from ..limits import SandboxLimits
from ..program import EntrantError, SandboxedProgram

_CHILD = "registry.sandbox.tuning.description_child"
_DEVICES = frozenset({"cpu", "cuda"})
_MOST_PARAMETERS = 64
_LONGEST_TEXT = 100


@dataclass(frozen=True)
class ToldAnswers:
    """What an implementation told of one problem: why it is not supported, or its configurations, the default first.

    ``of``: how many configurations it has, of which ``configs`` may be a part.
    """

    unsupported: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()
    of: int = 0
    preference: float = -1.0


@dataclass(frozen=True)
class ToldImplementation:
    """An implementation as its plugin file told of it. ``answers`` are by the problem's dimensions as JSON."""

    file: Path
    op: str
    name: str
    devices: frozenset[str]
    answers: Mapping[str, ToldAnswers]


def described(
    file: Path, problems: Sequence[Problem], device: Device, limits: SandboxLimits
) -> tuple[ToldImplementation, ...]:
    """The implementations in a plugin file of the problems' ops, with their answers for these problems on ``device``.

    Raises PluginError for a file that cannot be loaded, that defines ops, or that tells what is no description, and
    SandboxError where there is no sandbox on this machine.
    """
    try:
        with _Teller(file, device, limits) as teller:
            return tuple(teller.described(problems))
    except EntrantError as fault:
        raise PluginError(f"{file} in a sandbox: {fault.message}", hint="registry check FILE --sandbox") from fault


def dims_key(problem: Problem) -> str:
    """The dimensions of a problem as JSON, its traits left out."""
    return canonical_json(dict(problem.dims))


class _Teller:
    """A sandbox with the plugin file of one path."""

    def __init__(self, file: Path, device: Device, limits: SandboxLimits) -> None:
        self._file = file.resolve()
        self._entrant = SandboxedEntrant("", "", self._file)
        self._device = device
        self._limits = limits
        is_gpu = device.type == "cuda"
        self._program = SandboxedProgram(
            _CHILD, self._entrant.view(device, limits), self._entrant.environment(device), limits, is_gpu=is_gpu
        )

    def __enter__(self) -> _Teller:
        return self

    def __exit__(self, *_: object) -> None:
        self._program.close()

    def described(self, problems: Sequence[Problem]) -> Iterator[ToldImplementation]:
        told = self._asked({"path": self._entrant.plugin_inside})
        if told.get("ops"):
            raise PluginError(
                f"{self._file} defines {visible(str(told['ops'])):.100}: with --sandbox, a file may implement ops only",
                hint="an op's contract judges its implementations, so it must be trusted: install the op's package",
            )
        for listed in self._checked(_implementations, told):
            op, name = listed["op"], listed["name"]
            wanted = [problem for problem in problems if problem.op == op]
            answers = {dims_key(problem): self._answers(op, name, problem) for problem in wanted}
            yield ToldImplementation(self._file, op, name, frozenset(listed["devices"]), answers)

    def _answers(self, op: str, name: str, problem: Problem) -> ToldAnswers:
        inside = "cuda:0" if self._device.type == "cuda" else "cpu"
        told = self._asked({"op": op, "name": name, "dims": dict(problem.dims), "device": inside})
        found: ToldAnswers = self._checked(_answers, told)
        return found

    def _asked(self, question: Mapping[str, Any]) -> dict[str, Any]:
        told = self._program.ask(question, self._limits.load_s)
        found: dict[str, Any] = self._checked(_object, told.get("told"))
        return found

    def _checked(self, read: Any, told: Any) -> Any:
        try:
            return read(told)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RegistryError):
            raise PluginError(
                f"{self._file}: what its sandbox told is no description of a plugin",
                hint="its code may have taken the process over: registry check FILE --sandbox",
            ) from None


def _object(text: Any) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _implementations(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = told["implementations"]
    for one in found:
        if not isinstance(one["op"], str) or not isinstance(one["name"], str) or not {*one["devices"]} <= _DEVICES:
            raise ValueError
    return found


def _answers(told: Mapping[str, Any]) -> ToldAnswers:
    if "unsupported" in told:
        reasons = tuple(visible(one) for one in told["unsupported"])
        return ToldAnswers(unsupported=reasons or ("it gave no reason",))
    configs, preference = tuple(map(_config, told["configs"])), float(told["preference"])
    if not configs or any(one.keys() != configs[0].keys() for one in configs) or not math.isfinite(preference):
        raise ValueError
    return ToldAnswers(configs=configs, of=max(int(told["of"]), len(configs)), preference=min(preference, 0.0))


def _config(told: Any) -> Config:
    """A configuration of plain, finite and short values."""
    if not isinstance(told, dict) or len(told) > _MOST_PARAMETERS:
        raise InvalidDefinitionError("no configuration")
    for name, value in told.items():
        if not name.isidentifier() or type(value) not in {int, float, str, bool}:
            raise InvalidDefinitionError("no parameter")
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidDefinitionError("no finite value")
        if isinstance(value, str) and (not value.isprintable() or len(value) > _LONGEST_TEXT):
            raise InvalidDefinitionError("no plain text")
    return dict(told)
