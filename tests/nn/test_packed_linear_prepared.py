"""PackedLinear with an implementation that prepares its weight: a conversion of the module is seen by the next call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry import PackedWeight, Problem
from registry.artifact import Built
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans.prepared import prepared_bytes
from registry.implementation import Implementation, Run
from registry.nn import PackedLinear
from registry.space import Config

PARTS = ("qweight", "scales", "zeros")
X = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))


class Dequantized(Implementation):
    """Prepares the dense weight of all the packed one's tensors."""

    op, name = "gemm_int4", "a.dense"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self.made = 0

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        return {"dense": PARTS}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        self.made += values[0].device.type != "meta"
        n, k = problem.dims["n"], problem.dims["k"]
        return PackedWeight(*values, 4, problem.dims["group_size"], (n, k)).dequantize()

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> None:
            x, dense = values[0], values[-1]
            torch.mm(x, dense.T, out=outputs[0])

        return run


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Dequantized:
    implementation, dispatcher = Dequantized(), Dispatcher(Catalog(entry_points=()), database=str(tmp_path / "none.db"))
    dispatcher.register(implementation)
    monkeypatch.setattr("registry.nn.packed_linear.call", dispatcher.call)
    return implementation


CONVERSIONS: dict[str, Callable[[PackedLinear], object]] = {
    "nothing": lambda layer: layer.to("cpu"),
    "dtype": lambda layer: layer.to(torch.bfloat16),
    "scales alone": lambda layer: layer._apply(lambda tensor: tensor * 2 if tensor.is_floating_point() else tensor),
    "all": lambda layer: layer._apply(torch.clone),
    "shared memory": lambda layer: layer.share_memory(),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_a_call_after_a_conversion_has_the_numbers_of_the_converted_weight(
    preparing: Dequantized, conversion: str
) -> None:
    torch.manual_seed(0)
    layer = PackedLinear.from_linear(torch.nn.Linear(256, 24, bias=False).half()).requires_grad_(False)
    gc.collect()
    before = prepared_bytes()
    layer(X.half())
    CONVERSIONS[conversion](layer)
    x = X.to(layer.scales.dtype)
    for _ in range(2):
        expected = x.double() @ layer.weight.dequantize().double().T
        torch.testing.assert_close(layer(x).double(), expected, rtol=2e-2, atol=2e-2)
    assert preparing.made == (1 if conversion == "nothing" else 2)
    gc.collect()
    dense = 24 * 256 * layer.scales.element_size()
    if conversion == "all":
        assert prepared_bytes() == before + dense, "the form of the replaced tensors is let go"
