"""A process behind bubblewrap that tells what a plugin file offers: ``... DESCRIPTOR LIMITS``.

What it tells travels as text, and may be anything: the plugin's own code runs here.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import RegistryError, in_a_line
from ...space import Config, Space
from ...tuner.planning.problems import plan
from .. import wire
from ..limits import limit_this_process

MOST_CONFIGS = 256
"""The most configurations of an implementation that are told for a problem: the default, and others spread evenly."""
_MOST_TEXT = 48 << 10
_LONGEST_REASON = 300


class PluginTeller:
    """What a plugin file offers. ``load`` comes first."""

    def __init__(self) -> None:
        self._catalog = Catalog()

    def load(self, path: str) -> dict[str, Any]:
        """Load the file; the ops that it defines, and its implementations."""
        self._catalog.load_file(path)
        report = self._catalog.file_plugin(path)
        return {"ops": list(report.ops), "implementations": [self._listed(entry) for entry in report.implementations]}

    def _listed(self, entry: str) -> dict[str, Any]:
        op, name = entry.split("/", 1)
        return {"op": op, "name": name, "devices": sorted(self._catalog.implementation(op, name).device_types)}

    def ask(self, op: str, name: str, dims: Mapping[str, Any], device: str) -> dict[str, Any]:
        """An implementation's answers for one problem: why not, or its configurations, the default first."""
        problem = self._catalog.op(op).problem_of(dims)
        (planned,) = plan([problem], self._catalog, Device.of(device), [name])
        if planned.skipped and not planned.choices:
            return {"unsupported": [planned.skipped[:_LONGEST_REASON]]}
        (choice,) = planned.choices
        if not choice.supported:
            return {"unsupported": [reason[:_LONGEST_REASON] for reason in choice.unsupported]}
        assert choice.space is not None
        assert choice.default is not None
        configs = told_configs(choice.space, choice.default)
        return {"configs": configs, "of": len(choice.space.configs), "preference": choice.preference}


def told_configs(space: Space, default: Config) -> list[dict[str, Any]]:
    """The default and, spread evenly over the space, as many others as a packet holds."""
    every = space.configs
    step = max(1, -(-len(every) // MOST_CONFIGS))
    told, size = [dict(default)], len(json.dumps(dict(default)))
    for place in range(0, len(every), step):
        config = dict(every[place])
        size += len(json.dumps(config)) + 2
        if size > _MOST_TEXT or len(told) >= MOST_CONFIGS:
            break
        if config != told[0]:
            told.append(config)
    return told


def main(arguments: Sequence[str]) -> None:
    """Answer questions until the other side goes."""
    limit_this_process(json.loads(arguments[1]))
    end = socket.socket(fileno=int(arguments[0]))
    teller = PluginTeller()
    while True:
        message, *_ = wire.received_by_sandbox(end)
        if message is None:
            continue
        try:
            question = dict(message)
            told = teller.load(**question) if "path" in question else teller.ask(**question)
            wire.send(end, {"ok": True, "told": json.dumps(told)})
        except RegistryError as fault:
            wire.send(end, {"ok": False, "status": "error", "message": fault.message[:_LONGEST_REASON]})
        except Exception as fault:  # whatever the plugin's code raises
            wire.send(end, {"ok": False, "status": "error", "message": in_a_line(fault)[:_LONGEST_REASON]})


if __name__ == "__main__":
    main(sys.argv[1:])
