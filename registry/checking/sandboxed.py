"""Checks of a plugin file behind bubblewrap: what it does stays in there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..device import Device
from ..errors import RegistryError
from ..sandbox.bubblewrap import bubblewrap
from ..sandbox.entrant import SandboxedEntrant
from ..sandbox.limits import SandboxLimits
from ..sandbox.program import EntrantError, SandboxedProgram
from ..untrusted.visible import visible
from .steps import UNKNOWN, CheckFinding
from .target import is_file

_CHILD = "registry.checking.sandboxed_child"
_VERDICTS = frozenset({"passed", "failed", "skipped"})
_COUNTS = ("registers", "spill_bytes", "shared_bytes", "threads")


def require_sandbox(target: str) -> None:
    """Raise SandboxError where there is no sandbox on this machine, RegistryError for a plugin that is no file."""
    bubblewrap()
    if not is_file(target):
        raise RegistryError(
            f"--sandbox: {target} is no .py file",
            hint="an installed plugin runs wherever this package is imported: check its file before you install it",
        )


def found_in_sandbox(
    target: str, name: str, arguments: Mapping[str, Any], variables: Mapping[str, str], limit_s: float
) -> CheckFinding:
    """The finding of one check of the file ``target``, by a process in a sandbox of its own."""
    device = Device.best()
    entrant = SandboxedEntrant("", "", Path(target).resolve(), variables=variables)
    limits, inside = SandboxLimits(), entrant.environment(device)
    program = SandboxedProgram(_CHILD, entrant.view(device, limits), inside, limits, is_gpu=device.type == "cuda")
    try:
        asked = {"name": name, "arguments": {**arguments, "target": entrant.plugin_inside}}
        told = program.ask(asked, limit_s)
    except EntrantError as fault:
        return CheckFinding("failed", fault.message)
    finally:
        program.close()
    return _finding(name, str(told.get("finding", "")))


def _finding(name: str, text: str) -> CheckFinding:
    """The finding in a text that a sandbox sent; a failure for anything that is none."""
    try:
        found = CheckFinding(**_visible(json.loads(text)))
        sound = found.verdict in _VERDICTS and all(isinstance(one, str) for one in (found.reason, found.subject))
        if sound and _DETAILS.get(name, _no_details)(found.details):
            return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return CheckFinding("failed", "what it sent is no finding of that check")


def _visible(value: Any) -> Any:
    """Plain data with all its texts fit for a terminal."""
    if isinstance(value, dict):
        return {visible(name): _visible(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(_visible, value))
    return visible(value) if isinstance(value, str) else value


def _no_details(details: Mapping[str, Any]) -> bool:
    """Whether details may be shown: no other check reads them."""
    return "variants" not in details and UNKNOWN not in details


def _is_inventory(details: Mapping[str, Any]) -> bool:
    texts = [*details.get("ops", ())]
    for one in details.get("implementations", ()):
        texts += [one["op"], one["name"], *one["devices"]]
        if not {type(one["triton"]), type(one["compiles"])} <= {bool}:
            return False
    return all(isinstance(one, str) for one in texts) and _no_details(details)


def _has_variants(details: Mapping[str, Any]) -> bool:
    variants = details.get("variants", ())
    counts = [one.get(name) for one in variants for name in _COUNTS]
    parts = [one.get("occupancy") for one in variants]
    sound = {*map(type, counts)} <= {int, type(None)} and {*map(type, parts)} <= {int, float, type(None)}
    return sound and all(isinstance(one["kernel"], str) for one in variants) and UNKNOWN not in details


_DETAILS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {"load": _is_inventory, "compile": _has_variants}
"""Name of a check whose details are read -> whether details have the form that they are read in."""
