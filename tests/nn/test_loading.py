"""Weights that are loaded, copied or assigned into a layer are what it multiplies by, also in prepared forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry import Op, PackedExperts, PackedWeight, Problem, quantize
from registry.artifact import Built
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Implementation, Run
from registry.nn import (
    ActOrderLinear,
    PackedA8Linear,
    PackedExpertsMlp,
    PackedLinear,
    ScaledExperts,
    ScaledExpertsMlp,
    ScaledLinear,
)
from registry.space import Config

X = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()


class Copying(Implementation):
    """An op by its reference, over a prepared copy of one weight; ``read`` has the copies that calls read."""

    name = "a.copying"
    device_types = frozenset({"cpu"})
    returns_outputs = True

    def __init__(self, op: Op, weight: str) -> None:
        self.op = op.name
        self.read: dict[int, torch.Tensor] = {}
        self._reference = op.reference
        self._weight, self._place = weight, op.parsed.names.index(weight)

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        return {"copied": (self._weight,)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        made: torch.Tensor = values[0].clone()
        return made

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Any, values: tuple[Any, ...], scratch: Any) -> Any:
            copied = self.read[values[-1].data_ptr()] = values[-1]
            return self._reference(*values[: self._place], copied, *values[self._place + 1 : -1])

        return run


def weight(seed: int, bits: int = 4) -> PackedWeight:
    return quantize(torch.randn(24, 64, generator=torch.Generator().manual_seed(seed)).bfloat16(), bits, 32)


def linear(seed: int) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(64, 24).bfloat16()


def ordered(seed: int) -> ActOrderLinear:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    return ActOrderLinear(weight(seed), order)


def dense_experts(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(2, *shape).bfloat16() for shape in ((64, 64), (64, 32))]


def scaled_experts(seed: int) -> ScaledExpertsMlp:
    gate_up, down = (ScaledExperts.rounded(weights, "int8") for weights in dense_experts(seed))
    return ScaledExpertsMlp(gate_up, down, torch.nn.SiLU())


def experts(seed: int) -> PackedExpertsMlp:
    packed = [PackedExperts.stack([quantize(one, group_size=32) for one in stack]) for stack in dense_experts(seed)]
    return PackedExpertsMlp(packed[0], packed[1], torch.nn.SiLU())


LAYERS: dict[str, tuple[Callable[[int], torch.nn.Module], str, str]] = {
    "packed": (lambda seed: PackedLinear(weight(seed)), "gemm_int4", "qweight"),
    "act-order": (ordered, "gemm_int4", "qweight"),
    "w4a8": (lambda seed: PackedA8Linear(weight(seed)), "gemm_w4a8", "qweight"),
    "w8a8": (lambda seed: PackedA8Linear(weight(seed, 8)), "gemm_w8a8", "qweight"),
    "scaled": (lambda seed: ScaledLinear.from_linear(linear(seed), "int8"), "scaled_mm", "b"),
    "scaled scales": (lambda seed: ScaledLinear.from_linear(linear(seed), "int8"), "scaled_mm", "scale_b"),
    "scaled bias": (lambda seed: ScaledLinear.from_linear(linear(seed), "int8"), "scaled_mm", "bias"),
    "experts": (experts, "grouped_gemm_int4", "qweight"),
    "scaled experts": (scaled_experts, "grouped_scaled_mm", "weights"),
    "scales of experts": (scaled_experts, "grouped_scaled_mm", "scale_weights"),
}
"""A layer by a seed, the op that multiplies by its weight, and the argument of which a form is prepared."""


@pytest.fixture
def preparing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Copying:
    dispatcher = Dispatcher(Catalog(entry_points=()), database=str(tmp_path / "none.db"))
    _, op, argument = LAYERS[request.node.callspec.params["kind"]]
    implementation = Copying(dispatcher.catalog.op(op), argument)
    dispatcher.register(implementation)
    for module in ("packed_linear", "packed_a8_linear", "scaled_linear", "packed_experts_mlp", "scaled_experts_mlp"):
        monkeypatch.setattr(f"registry.nn.{module}.call", dispatcher.call)
    return implementation


def multiplied(layer: torch.nn.Module) -> torch.Tensor:
    given = (torch.tensor([[0, 1], [1, 0], [1, 0]]), torch.ones(3, 2).bfloat16())
    with torch.no_grad():
        y: torch.Tensor = layer(X, *(given if isinstance(layer, PackedExpertsMlp | ScaledExpertsMlp) else ()))
    return y


def copied(layer: torch.nn.Module, other: torch.nn.Module) -> None:
    given = other.state_dict()
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            tensor.copy_(given[name])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_a_layer_multiplies_by_the_weights_that_are_loaded_or_copied_into_it(preparing: Copying, kind: str) -> None:
    make = LAYERS[kind][0]
    layer, *others = (make(seed) for seed in range(4))
    multiplied(layer)
    of_graph = dict(preparing.read)
    assert of_graph
    layer.load_state_dict(others[0].state_dict())
    state = [tensor for tensor in layer.state_dict().values() if tensor is not None]
    for form in of_graph.values():  # a graph reads them without a further call
        assert any(form.shape == one.shape and torch.equal(form, one) for one in state)
    assert torch.equal(multiplied(layer), multiplied(others[0]))
    copied(layer, others[1])
    preparing.read.clear()
    y = multiplied(layer)
    assert preparing.read.keys() == of_graph.keys(), "forms are made again in place"
    assert torch.equal(y, multiplied(others[1]))
    layer.load_state_dict(others[2].state_dict(), assign=True)
    assert torch.equal(multiplied(layer), multiplied(others[2]))


@pytest.mark.parametrize(
    ("layer", "name", "dtype", "expected"),
    [
        (lambda: ScaledLinear.from_linear(linear(0), "int8"), "levels", torch.float8_e4m3fn, torch.int8),
        (lambda: ScaledLinear.from_linear(linear(0), "int8"), "scales", torch.bfloat16, torch.float32),
        (lambda: experts(0), "down_qweight", torch.float32, torch.int32),
        (lambda: scaled_experts(0), "down_scales", torch.bfloat16, torch.float32),
    ],
)
def test_a_state_of_other_dtypes_is_refused(
    layer: Callable[[], torch.nn.Module], name: str, dtype: torch.dtype, expected: torch.dtype
) -> None:
    made = layer()
    state = {**made.state_dict(), name: made.state_dict()[name].to(dtype)}
    with pytest.raises(RuntimeError, match=f"{name} is {dtype}, expected {expected}"):
        made.load_state_dict(state)
