"""Which device a name stands for, and what a wrong one is told."""

from __future__ import annotations

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
