"""FlashInfer-Bench's solutions and traces of what runs here: a kernel's way back to where its definition came from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..device import Device
from ..errors import InvalidArgumentError
from ..problem import Value
from .detection import ImportedProblem
from .flashinfer_bench import Definition
from .foreign_file import plain_name
from .plugin_file import ForeignKernel
from .race import RaceStanding


def solution_of(definition: str, op: str, implementation: str, inputs: Sequence[str]) -> dict[str, Any]:
    """A solution that runs an implementation of this registry, for a definition of the same inputs."""
    values = ", ".join(inputs)
    content = (
        "import registry\n\n\n"
        f"def run({values}):\n"
        f'    with registry.using(**{{"{op}": "{implementation}"}}):\n'
        f'        return registry.call("{op}", {values})\n'
    )
    return {
        "name": plain_name(f"{definition}_{implementation}"),
        "definition": definition,
        "author": "kernel-registry",
        "description": f"{implementation} of {op}, by kernel-registry",
        "spec": {
            "language": "python", "target_hardware": [Device.best().name], "entry_point": "main.py::run",
            "dependencies": ["kernel-registry"], "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": content}],
    }  # fmt: skip


_STATUS = {
    "ok": "PASSED", "wrong_result": "INCORRECT_NUMERICAL", "timeout": "TIMEOUT", "compile_error": "COMPILE_ERROR",
}  # fmt: skip


def trace_of(  # noqa: PLR0913  (a field of a trace each)
    definition: str, solution: str, dims: Mapping[str, Value], axes: Sequence[str], *, status: str, message: str,
    median_us: float | None, reference_us: float | None, device: str,
) -> dict[str, Any]:  # fmt: skip
    """A trace: the verdict and time of one solution on one workload."""
    performance = None
    if median_us and reference_us:
        performance = {
            "latency_ms": median_us / 1000, "reference_latency_ms": reference_us / 1000,
            "speedup_factor": reference_us / median_us,
        }  # fmt: skip
    named = re.sub(r"\W+", "-", " ".join(f"{name}={dims[name]}" for name in axes))
    return {
        "definition": definition,
        "solution": solution,
        "workload": {"uuid": named, "axes": {name: dims[name] for name in axes}, "inputs": {}},
        "evaluation": {
            "status": _STATUS.get(status, "RUNTIME_ERROR"), "log": message,
            "environment": {"hardware": device, "libs": {"torch": torch.__version__}}, "performance": performance,
        },
    }  # fmt: skip


def write_traces(
    folder: Path,
    there: ImportedProblem | None,
    found: Sequence[ForeignKernel],
    standings: Sequence[RaceStanding],
    device: str,
) -> None:
    """Write traces.jsonl with a trace for each standing of a race, and a solution's JSON for each entrant.

    Raises InvalidArgumentError for a race whose problem is no definition of FlashInfer-Bench.
    """
    if there is None or not isinstance(there.source, Definition):
        raise InvalidArgumentError(
            "traces: the race's problem is no definition of FlashInfer-Bench", hint="leave --traces out"
        )
    definition, own = there.source, {one.name: Path(one.path) for one in found}
    folder.mkdir(parents=True, exist_ok=True)
    reference_us = {
        one.problem.key: one.median_us for one in standings if one.problem and one.name == there.op.baseline
    }
    lines: list[str] = []
    for one in standings:
        if one.problem is None:
            continue
        name, path = str(definition.told["name"]), own.get(one.name)
        is_theirs = path is not None and path.suffix == ".json"
        solution = (
            json.loads(path.read_text())
            if is_theirs and path is not None
            else solution_of(name, there.name, one.name, definition.inputs)
        )
        (folder / f"{plain_name(solution['name'])}.json").write_text(json.dumps(solution, indent=1) + "\n")
        trace = trace_of(
            name, solution["name"], one.problem.dims, definition.variable_axes, status=one.status, message=one.reason,
            median_us=one.median_us, reference_us=reference_us.get(one.problem.key), device=device,
        )  # fmt: skip
        lines.append(json.dumps(trace))
    (folder / "traces.jsonl").write_text("".join(f"{line}\n" for line in lines))
