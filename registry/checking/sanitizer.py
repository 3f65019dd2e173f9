"""Races and wild accesses by NVIDIA's compute-sanitizer, where that is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .steps import CheckFinding

_OPTIONS = {
    # a call of the driver's API that fails is a probe of a library, or its error reaches the caller
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
}
TOOLS = tuple(_OPTIONS)
_FOUND = 86
"""The exit code by which the sanitizer tells that it has found something."""

_TIMEOUT_S = 300
_MOST_LINES = 6
_PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")
_IN_WHEELS = ("cu13/bin", "cuda_sanitizer_api/bin")
"""Where the wheels nvidia-cuda-sanitizer-api and -cu12 have the program, below the package ``nvidia``."""

HOW_TO_INSTALL = "pip install nvidia-cuda-sanitizer-api, or take the CUDA toolkit's"


def sanitizer() -> str | None:
    """The path of compute-sanitizer, on the search path, of a toolkit or of NVIDIA's wheel; None without any."""
    return next((found for place in (*_PLACES, *_wheels()) if (found := shutil.which(place))), None)


def _wheels() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for place in _IN_WHEELS:
            yield str(Path(folder, place, "compute-sanitizer"))


def sanitized(tool: str, arguments: Mapping[str, Any]) -> CheckFinding:
    """Run one call of an implementation under a tool of the sanitizer, see ``sanitized_call``."""
    program = sanitizer()
    if program is None:
        return CheckFinding("skipped", f"compute-sanitizer is not installed: {HOW_TO_INSTALL}")
    call = [sys.executable, "-m", "registry.checking.sanitized_call", json.dumps(arguments)]
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--target-processes", "all", *_OPTIONS[tool]]
    # torch's allocator hides where a tensor ends
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            [program, *options, *call],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return CheckFinding("skipped", f"{tool} took more than {_TIMEOUT_S} s")
    return finding(tool, done.returncode, done.stdout + done.stderr)


def finding(tool: str, code: int, output: str) -> CheckFinding:
    """The finding in the exit code and the output of a tool."""
    told = [line.strip("= ") for line in output.splitlines() if line.startswith("=========") and line.strip("= ")]
    if code == 0:
        refused = re.search(r"^refused: (.*)$", output, re.MULTILINE)
        return CheckFinding("skipped", refused.group(1)) if refused else CheckFinding("passed")
    if code == _FOUND:
        faults = [line for line in told if not line.startswith("COMPUTE-SANITIZER")]
        return CheckFinding("failed", "\n".join(faults[:_MOST_LINES]) or f"{tool} has found errors")
    last = [line for line in output.splitlines() if line.strip()][-1:]
    return CheckFinding("skipped", f"{tool} could not run: exit code {code}{''.join(f', {line}' for line in last)}")
