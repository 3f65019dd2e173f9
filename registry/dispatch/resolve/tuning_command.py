"""The shell command that tunes one problem."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from ...problem import Problem


def tune_command(problem: Problem, files: Iterable[str] = ()) -> str:
    """A shell command that tunes exactly this problem; ``files`` are the plugin files that have to do with its op."""
    shapes = json.dumps({problem.op: [dict(problem.dims)]})
    plugins = "".join(f" --plugin {shlex.quote(file)}" for file in files)
    return f"echo {shlex.quote(shapes)} > shapes.yaml && tune --op {problem.op} --shapes shapes.yaml{plugins}"
