"""Which device a name stands for, and what a wrong one is told."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from registry import Device, DeviceError


def test_the_cpu_is_one_device_by_any_of_its_names() -> None:
    assert Device.of("cpu") == Device.of("cpu:0") == Device.of(torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu:3", r"^cpu:3: all of this machine's cores are one device\n  use cpu$"),
        (torch.device("cpu", 1), "^cpu:1: all of this machine's cores"),
        ("gpu", r"^'gpu' is not a device\n  expected cpu, cuda or cuda:INDEX"),
        ("cuda:-1", "^'cuda:-1' is not a device"),
        ("meta", r"^device type 'meta' is not supported\n  expected cpu, cuda"),
        (None, r"^None is not a device\n  expected cpu"),
        ("cuda:99", "^cuda:99: "),
    ],
)
def test_what_is_no_device_here_is_refused_with_a_hint(name: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        Device.of(name)
    assert caught.value.hint


def test_a_device_of_another_process_is_found_among_those_of_this_one() -> None:
    code = (
        "import pickle, sys, registry; made = registry.Device.without_hardware('sm_90'); hash(made);"
        "sys.stdout.buffer.write(pickle.dumps(made))"
    )
    seeded = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=seeded)
    assert {Device.without_hardware("sm_90"): "kept"}[pickle.loads(done.stdout)] == "kept"
