"""Children of a process that has used the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

SCRIPT = Path(__file__).with_name("processes.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_child_is_served_or_told_why_not(way: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{way}: the child ended with 0" in done.stdout
