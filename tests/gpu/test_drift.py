"""Winners on a GPU timed again beside their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..cli.conftest import Command, command
from ..cli.releases.test_drift import Drifting, check_alarms, own_files

__all__ = ["command", "own_files"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_winners_on_a_gpu_that_do_not_hold_any_more_raise_an_alarm(
    command: Command, own_files: Path, few_blocks: None
) -> None:
    check_alarms(command, Drifting(own_files, "cuda"), "cuda")
