"""Triton's C launcher is called directly in the versions that it was tried with, and in no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import triton

from registry.backends.triton.launch import DeviceForm, _has_known_launcher, was_tried


class CudaLauncher:
    """What a compiled kernel of a GPU has as its ``run``."""

    launch_cooperative_grid = launch_pdl = False
    global_scratch_size = 0
    num_ctas = 1

    def launch(self, *_arguments: Any) -> None:
        raise AssertionError("nothing is launched here")


@pytest.fixture
def kernel() -> Any:
    return SimpleNamespace(run=CudaLauncher(), metadata=SimpleNamespace())


def test_the_installed_triton_was_tried(kernel: Any) -> None:
    assert was_tried(triton.__version__), "see TRIED: try the launcher's arguments, then add the version"
    assert _has_known_launcher(kernel)


@pytest.mark.parametrize(
    ("version", "tried"),
    [
        ("3.6.0", True), ("3.9.1", True), ("3.7.0+git1234", True),
        ("3.10.0", False), ("3.5.1", False), ("4.0.0", False), ("3.10.0a1", False), ("3", False), ("main", False),
        ("", False),
    ],
)  # fmt: skip
def test_any_other_version_is_launched_by_its_own_call(
    kernel: Any, version: str, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert was_tried(version) is tried
    assert _has_known_launcher(kernel) is tried


def test_the_launcher_of_another_device_is_not_called_directly(kernel: Any) -> None:
    kernel.run = type("HIPLauncher", (CudaLauncher,), {})()
    assert not _has_known_launcher(kernel)
    assert DeviceForm((), (), 0, direct=False).names["k_runtime"] is triton.knobs.runtime
