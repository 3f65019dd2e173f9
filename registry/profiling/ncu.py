"""Nsight Compute's metrics of the kernels of one call, and the advice of its own rules."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import RegistryError
from ..problem import Problem

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats", "SchedulerStats")
METRICS = (
    "Duration", "Memory Throughput", "DRAM Throughput", "Compute (SM) Throughput", "L1/TEX Hit Rate", "L2 Hit Rate",
    "Achieved Occupancy", "Theoretical Occupancy", "Registers Per Thread", "Grid Size", "Block Size",
    "Dynamic Shared Memory Per Block", "No Eligible",
)  # fmt: skip
"""Metrics that are shown, by the names of ncu's details page."""

_LIMIT_S = 600
_NO_COUNTERS = "ERR_NVGPUCTRPERM"


@dataclass
class KernelReport:
    """One kernel: its metrics with units, and the advice of each rule that has any."""

    kernel: str
    metrics: dict[str, str] = field(default_factory=dict)
    advice: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredCall:
    """The call to measure: its problem, the device by name, the database of winners, files of plugins."""

    problem: Problem
    device: str
    database: str | None = None
    files: tuple[Path, ...] = ()

    def written(self) -> str:
        """The call as JSON, which ``one_call`` reads."""
        where = {
            "device": self.device,
            "database": self.database,
            "files": [str(path.resolve()) for path in self.files],
        }
        return json.dumps({"op": self.problem.op, "dims": dict(self.problem.dims), **where})


def require_ncu() -> str:
    """The path of ncu. Raises RegistryError where it is not installed."""
    found = shutil.which("ncu")
    if found is None:
        raise RegistryError(
            "--ncu needs Nsight Compute, and there is no ncu on the PATH",
            hint="it comes with the CUDA toolkit (/usr/local/cuda/bin), or as your system's package nsight-compute",
        )
    return found


def ncu_command(ncu: str, call: MeasuredCall) -> list[str]:
    """The command that measures the kernels of one call, after calls that warm it up."""
    sections = [part for section in SECTIONS for part in ("--section", section)]
    return [
        ncu, "--csv", "--page", "details", "--profile-from-start", "off", "--target-processes", "application-only",
        *sections, sys.executable, "-m", "registry.profiling.one_call", call.written(),
    ]  # fmt: skip


def ncu_reports(ncu: str, call: MeasuredCall) -> list[KernelReport]:
    """The kernels of one call of a problem. Raises RegistryError with ncu's own reason where it measures none."""
    command, problem = ncu_command(ncu, call), call.problem
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RegistryError(f"ncu: {problem} took more than {_LIMIT_S} s", hint="profile a smaller problem") from None
    except OSError as fault:
        raise RegistryError(f"{ncu}: {fault.strerror}", hint="expected Nsight Compute's program") from None
    reports = parsed_reports(done.stdout)
    if not reports:
        raise _nothing_measured(problem, done.stdout + done.stderr)
    return reports


def parsed_reports(text: str) -> list[KernelReport]:
    """The kernels in the CSV of ncu's details page, which may stand behind lines of the program and of ncu."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    return _reports(csv.DictReader(io.StringIO("\n".join(lines[first:]))))


def _reports(rows: Iterable[dict[str, str]]) -> list[KernelReport]:
    found: dict[str, KernelReport] = {}
    for row in rows:
        report = found.setdefault(row.get("ID") or "", KernelReport(row.get("Kernel Name") or ""))
        metric = row.get("Metric Name") or ""
        if metric in METRICS:
            report.metrics[metric] = f"{row.get('Metric Value') or ''} {row.get('Metric Unit') or ''}".strip()
        rule, advice = row.get("Rule Name") or "", row.get("Rule Description") or ""
        if rule and advice:
            report.advice[rule] = " ".join(advice.split())
    return list(found.values())


def _nothing_measured(problem: Problem, output: str) -> RegistryError:
    if _NO_COUNTERS in output:
        return RegistryError(
            f"ncu: {_NO_COUNTERS}: the driver lets only an administrator read the GPU's counters",
            hint="run it as root, or have the administrator set NVreg_RestrictProfilingToAdminUsers=0",
        )
    told = [line.strip() for line in output.splitlines() if line.strip()]
    return RegistryError(f"ncu measured no kernel of {problem}", hint="; ".join(told[-3:])[:400])
