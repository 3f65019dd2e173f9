"""kernel_mapping: what it refuses, what it is without kernels, and that kernels loads each of its layers."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from registry.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.hf_kernels import LAYERS, kernel_mapping

pytestmark = pytest.mark.usefixtures("late_imports")

NAME = "registry.integrations.hf_kernels"


def test_each_mark_has_a_layer_on_each_device_that_kernels_loads() -> None:
    mapping = kernel_mapping()
    assert {"RMSNorm", "RMSNormZeroCentered", "RMSNormGated", "GeLU", "GeluTanh", "rotary_pos_emb"} <= mapping.keys()
    assert all(repositories.keys() == {"cpu", "cuda"} for repositories in mapping.values())
    for repositories in mapping.values():
        layer = repositories["cpu"].load()
        assert layer.__module__ == f"{NAME}.layers"
        assert (layer.can_torch_compile, layer.has_backward) == (True, True)
    assert (LAYERS / "metadata.json").is_file()


def test_devices_may_be_chosen() -> None:
    assert {device for repositories in kernel_mapping(["cuda"]).values() for device in repositories} == {"cuda"}


@pytest.mark.parametrize(("devices", "told"), [("mps", "'mps'"), (["cpu", "xpu"], "'xpu'"), ([], "none")])
def test_an_unknown_device_is_refused_with_what_is_expected(devices: list[str], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"devices are {told}, expected some of cpu, cuda"):
        kernel_mapping(devices)


@pytest.mark.parametrize("name", ["kernels", "transformers"])
def test_without_a_package_the_import_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.startswith(NAME)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=rf"{name} not installed[\s\S]*kernel-registry\[hf-kernels\]"):
        importlib.import_module(NAME)
