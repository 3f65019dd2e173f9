"""Races and wild accesses by NVIDIA's compute-sanitizer, where that is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from .steps import Found

TOOLS = ("memcheck", "racecheck")
_FOUND = 86
"""The exit code by which the sanitizer tells that it has found something."""

_TIMEOUT_S = 300
_MOST_LINES = 6
_PLACES = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer")


def sanitizer() -> str | None:
    """The path of compute-sanitizer; None where it is not installed."""
    return next((found for place in _PLACES if (found := shutil.which(place))), None)


def sanitized(tool: str, arguments: Mapping[str, Any]) -> Found:
    """Run one call of an implementation under a tool of the sanitizer, see ``sanitized_call``."""
    program = sanitizer()
    if program is None:
        return Found("skipped", "compute-sanitizer is not installed; it comes with the CUDA toolkit")
    call = [sys.executable, "-m", "registry.checking.sanitized_call", json.dumps(arguments)]
    command = [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--target-processes", "all", *call]
    # torch's allocator hides where a tensor ends
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return Found("skipped", f"{tool} took more than {_TIMEOUT_S} s")
    return finding(tool, done.returncode, done.stdout + done.stderr)


def finding(tool: str, code: int, output: str) -> Found:
    """The finding in the exit code and the output of a tool."""
    told = [line.strip("= ") for line in output.splitlines() if line.startswith("=========") and line.strip("= ")]
    if code == 0:
        refused = re.search(r"^refused: (.*)$", output, re.MULTILINE)
        return Found("skipped", refused.group(1)) if refused else Found("passed")
    if code == _FOUND:
        faults = [line for line in told if not line.startswith("COMPUTE-SANITIZER")]
        return Found("failed", "\n".join(faults[:_MOST_LINES]) or f"{tool} has found errors")
    last = [line for line in output.splitlines() if line.strip()][-1:]
    return Found("skipped", f"{tool} could not run: exit code {code}{''.join(f', {line}' for line in last)}")
