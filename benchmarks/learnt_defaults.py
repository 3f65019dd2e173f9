"""The rules for defaults that come with the package, fitted to winners, and how good they are on other problems.

    python -m benchmarks.learnt_defaults --winners registry/shipped/nvidia-h200.jsonl --gpu h200 \\
        --winners benchmarks/results/cpu/winners.jsonl [--write registry/shipped/defaults.json]

Each file is an export of winners (``registry export --winners-only``); the winners of each hardware in it make rules of
their own. ``--gpu`` names the GPU of files that were not measured on this machine: fitting asks implementations what
they declare for it. The table shows the time of the
default over the fastest implementation's, as a geometric mean: of the rule (five-fold cross-validation) and of what is
declared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from registry import Device
from registry.discovery.catalog import Catalog
from registry.problem import canonical_json
from registry.tuner.decide.learning import fit, held_out, samples_of
from tuning_db import Decision
from tuning_db.exchange import DecisionLine, WinnerLine, lines

_H200 = Device(
    type="cuda", index=0, name="NVIDIA H200", architecture="sm_90", multiprocessors=132,
    memory_bytes=150_323_855_360, l2_bytes=62_914_560, shared_bytes=232_448, registers=65_536,
)  # fmt: skip
GPUS = {
    "h100": replace(_H200, name="NVIDIA H100 80GB HBM3", memory_bytes=84_825_604_096, l2_bytes=52_428_800),
    "h200": _H200,
}
"""GPUs as ``Device.of`` describes them."""


def winners(file: Path) -> list[Decision]:
    """The decisions of an export that are winners."""
    with file.open(encoding="utf-8") as stream:
        contents = [content for _, content in lines(stream)]
    winning = {content.decision for content in contents if isinstance(content, WinnerLine)}
    decisions = (content.decision for content in contents if isinstance(content, DecisionLine))
    return [decision for decision in decisions if decision.uid in winning]


def by_hardware(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """The decisions of each hardware, in the order in which these first occur."""
    found: dict[str, list[Decision]] = {}
    for decision in decisions:
        found.setdefault(canonical_json(dict(decision.environment.hardware)), []).append(decision)
    return list(found.values())


def device_of(hardware: Mapping[str, Any], gpu: str | None = None) -> Device:
    """The device that winners were measured on: ``gpu`` of GPUS, a GPU that is here, or a CPU of that identity."""
    if hardware["type"] == "cpu":
        return replace(Device.of("cpu"), **hardware)
    return GPUS[gpu] if gpu else Device.of(str(hardware["type"]))


def rules(decisions: Sequence[Decision], device: Device, catalog: Catalog) -> tuple[dict[str, Any], list[str]]:
    """The rule of each op as JSON, and the lines of the table."""
    found: dict[str, Any] = {}
    table = []
    for name in sorted({one.problem.op for one in decisions}):
        op, implementations = catalog.op(name), catalog.implementations(name)
        own = [one for one in decisions if one.problem.op == name]
        rule = fit(op, own, implementations, device)
        if rule is None:
            table.append(f"| {name} | {len(own)} | | | too few |")
            continue
        found[name] = rule.plain()
        learnt, declared = (math.exp(loss) for loss in held_out(op, samples_of(op, own, implementations, device)))
        configs = ", ".join(f"{len(known)} configurations of {each}" for each, known in rule.configs.items())
        tree = json.dumps(rule.plain()["tree"])
        table.append(f"| {name} | {rule.problems} | {declared:.3f} | {learnt:.3f} | `{tree:.160}` {configs} |")
    return found, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--winners", type=Path, action="append", required=True, help="an export; may be repeated")
    parser.add_argument("--gpu", choices=sorted(GPUS), help="the GPU of files that were not measured on this machine")
    parser.add_argument("--write", type=Path, help="the file of rules")
    options = parser.parse_args(arguments)
    catalog, records = Catalog(), []
    for file in options.winners:
        for decisions in by_hardware(winners(file)):
            here = decisions[0].environment.hardware
            found, table = rules(decisions, device_of(here, options.gpu), catalog)
            print(f"\n{here['name']} ({here['architecture']}), {len(decisions)} winners of {file.name}\n")
            print("| op | problems | declared over fastest | rule over fastest, held out | rule |\n|" + " --- |" * 5)
            print("\n".join(table))
            records.append({"hardware": dict(here), "defaults": found})
    if options.write:
        text = ",\n".join(json.dumps(record, sort_keys=True) for record in records)
        options.write.write_text(f"[\n{text}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
