"""The shell command that tunes one problem."""

from __future__ import annotations

import json

from ...problem import Problem


def tune_command(problem: Problem) -> str:
    """A shell command that tunes exactly this problem."""
    shapes = json.dumps({problem.op: [dict(problem.dims)]})
    return f"echo '{shapes}' > shapes.yaml && tune --op {problem.op} --shapes shapes.yaml"
