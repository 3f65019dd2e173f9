"""Runs the checks of a plugin, each in a child process: a crash is an outcome and not the end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..device import Device
from ..errors import RegistryError
from ..problem import Value
from ..tuner.processes import spawning
from ..tuner.processes.process import Child
from ..untrusted.file_kinds import why_no_file
from . import sanitizer
from .outcomes import CheckOutcome, PluginCheck
from .sandboxed import found_in_sandbox, require_sandbox
from .steps import UNKNOWN, CheckFinding
from .target import distribution_in, is_file

LIMIT_S = 600.0
"""The most seconds that one check may take, unless the caller says otherwise."""

ARCHITECTURES = ("sm_80", "sm_90")
"""What kernels are compiled for when the caller does not say."""

_INTERPRET = "TRITON_INTERPRET"
_WARM = ("registry.checking.child",)

Tell = Callable[[CheckOutcome], None]


@dataclass(frozen=True)
class CheckRequest:
    """What to check. ``target``: a .py file, or an installed plugin, its package, its distribution or that's folder.

    ``dims`` is the one problem on which numbers are checked and for which kernels are compiled; without it, the op's
    examples. ``sandbox``: each check runs behind bubblewrap.
    """

    target: str
    architectures: Sequence[str] = ARCHITECTURES
    database: str | None = None
    limit_s: float = LIMIT_S
    dims: Mapping[str, Value] | None = None
    sandbox: bool = False


def check_plugin(request: CheckRequest, tell: Tell = lambda _: None) -> PluginCheck:
    """Check a plugin; ``tell`` is called with each outcome as it comes.

    Raises RegistryError for a target that does not exist or is not installed, DeviceError for an unknown architecture,
    SandboxError where there is no sandbox on this machine.
    """
    _require(request.target)
    if request.sandbox:
        require_sandbox(request.target)
    for architecture in request.architectures:
        Device.without_hardware(architecture)
    outcomes: list[CheckOutcome] = []
    with nullcontext() if request.sandbox else spawning.kept(*_WARM):
        for outcome in _outcomes(request):
            if told := outcome.details.get(UNKNOWN):
                raise RegistryError(told[0], hint=told[1])
            tell(outcome)
            outcomes.append(outcome)
    return PluginCheck(request.target, outcomes)


def _require(target: str) -> None:
    path = Path(target)
    if is_file(target) and (why := why_no_file(path)):
        raise RegistryError(f"{target}: {why}", hint="expected a .py file")
    if path.is_dir():
        distribution_in(path)


def _outcomes(request: CheckRequest) -> Iterator[CheckOutcome]:
    base = {"target": request.target}
    loaded = _made("load", request.target, base, request)
    yield loaded
    for op in loaded.details.get("ops", ()):
        yield _made("contract", op, {**base, "op": op}, request)
    for one in loaded.details.get("implementations", ()):
        where = {**base, "op": one["op"], "name": one["name"]}
        yield _numerics(one, where, request)
        yield from _compiled(one, where, request)
        yield from _on_gpu(one, where, request)


def _numerics(one: Mapping[str, Any], where: Mapping[str, Any], request: CheckRequest) -> CheckOutcome:
    """The outcome of the numeric check on the GPU if there is one and the implementation runs there, else the CPU."""
    subject = f"{one['op']}/{one['name']}"
    on_gpu = "cuda" in one["devices"] and torch.cuda.is_available()
    interpreted = one["triton"] and not on_gpu
    if not on_gpu and not interpreted and "cpu" not in one["devices"]:
        return CheckOutcome("numerics", subject, "skipped", "it runs on a GPU only, and none is usable here")
    device = "cuda" if on_gpu else "cpu"
    variables = {_INTERPRET: "1"} if interpreted else {}
    asked = {**where, "device": device, "interpreted": interpreted, "dims": request.dims and dict(request.dims)}
    return _made(
        "numerics", f"{subject} on {'Triton, interpreted' if interpreted else device}", asked, request, variables
    )


def _compiled(one: Mapping[str, Any], where: Mapping[str, Any], request: CheckRequest) -> Iterator[CheckOutcome]:
    subject = f"{one['op']}/{one['name']}"
    if not one["compiles"]:
        yield CheckOutcome("compile", subject, "skipped", "it has nothing to compile before it runs")
        return
    for architecture in request.architectures if "cuda" in one["devices"] else ("",):
        name = f"{subject} for {architecture or 'this host'}"
        yield _made(
            "compile",
            name,
            {**where, "architecture": architecture, "dims": request.dims and dict(request.dims)},
            request,
        )


def _on_gpu(one: Mapping[str, Any], where: Mapping[str, Any], request: CheckRequest) -> Iterator[CheckOutcome]:
    if "cuda" not in one["devices"]:
        return
    subject = f"{one['op']}/{one['name']}"
    if not torch.cuda.is_available():
        for name in ("tuned shapes", "capture", "two streams", *sanitizer.TOOLS):
            yield CheckOutcome(name, subject, "skipped", "no GPU is usable here")
        return
    asked = {**where, "device": "cuda"}
    yield _made("tuned shapes", subject, {**asked, "database": request.database}, request)
    yield _made("capture", subject, asked, request)
    yield _made("two streams", subject, asked, request)
    for tool in sanitizer.TOOLS:
        if request.sandbox:
            yield CheckOutcome(tool, subject, "skipped", "the sanitizer traces a process, which no sandbox allows")
            continue
        started = time.perf_counter()
        found = sanitizer.sanitized(tool, asked)
        yield _outcome(tool, subject, found, time.perf_counter() - started)


def _made(
    name: str,
    subject: str,
    arguments: Mapping[str, Any],
    request: CheckRequest,
    variables: Mapping[str, str] | None = None,
) -> CheckOutcome:
    """The outcome of one check, made by a child; its crash or its silence is a failure."""
    started = time.perf_counter()
    # a caller's own interpreter would have kernels compiled for no GPU
    extra = {_INTERPRET: "0", **(variables or {})} if _INTERPRET in os.environ else variables
    if request.sandbox:
        inside = found_in_sandbox(request.target, name, arguments, extra or {}, request.limit_s)
        return _outcome(name, subject, inside, time.perf_counter() - started)
    child = Child("registry.checking.child", (), extra, fresh=_INTERPRET in (extra or {}))
    try:
        child.send({"name": name, "arguments": dict(arguments)})
        found = _answer(child, started + request.limit_s)
        if found is None:
            found = CheckFinding("failed", f"it was ended after {request.limit_s:.0f} s")
    finally:
        child.stop()
    return _outcome(name, subject, found, time.perf_counter() - started)


def _answer(child: Child, until: float) -> CheckFinding | None:
    """The child's finding, None if none came in time."""
    poll = select.poll()
    poll.register(child.fileno(), select.POLLIN)
    while (left := until - time.perf_counter()) > 0:
        if not poll.poll(left * 1000):
            continue
        messages, more = child.receive()
        for message in messages:
            if message.keys() == set(CheckFinding._fields):
                return CheckFinding(**message)
        if not more:
            return CheckFinding("failed", f"the process that ran it ended: {child.end().why}")
    return None


def _outcome(name: str, subject: str, found: CheckFinding, seconds: float) -> CheckOutcome:
    return CheckOutcome(name, subject, found.verdict, found.reason, round(seconds, 3), found.details)
