"""Under torch's profiler calls have the op's name, and its FLOP counter counts them by the op's own floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import registry
from registry.dispatch.torch_side.profiles import count_flops

X = torch.randn(6, 50)
OPS = torch.ops.kernel_registry


def events(run: Callable[[], Any], times: int) -> dict[str, int]:
    """The names of this package that a profile of so many runs shows, and how often each."""
    with profile(activities=[ProfilerActivity.CPU]) as shown:
        for _ in range(times):
            run()
    return {event.key: event.count for event in shown.key_averages() if "kernel_registry::" in event.key}


def flops(run: Callable[[], Any]) -> dict[str, int]:
    with FlopCounterMode(display=False) as counter:
        run()
    return {str(packet).rpartition(".")[2]: count for packet, count in counter.get_flop_counts()["Global"].items()}


def softmax_flop(x: torch.Tensor) -> int:
    op = registry.ops()["softmax"]
    return round(op.floor(op.problem_of({"rows": x.shape[0], "cols": x.shape[1], "dtype": "float32"})).flop)


@pytest.mark.parametrize("way", [lambda x: registry.call("softmax", x), registry.op("softmax")], ids=["call", "op"])
@pytest.mark.few(1)
def test_an_eager_call_is_named_first_and_on_every_hit(way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name in ("cpp.rows", "torch.native"):
        with registry.using(softmax=name):
            assert events(lambda: way(X), 3) == {f"kernel_registry::softmax ({name})": 3}
    x = torch.randn(9, 50)
    (name,) = events(lambda: way(x), 3)  # a miss, or another size, then hits of the table
    assert name.startswith("kernel_registry::softmax (")
    torch.testing.assert_close(way(x), torch.softmax(x, -1))


def test_torchs_operator_and_gradients_are_named() -> None:
    x = X.clone().requires_grad_()
    shown = events(lambda: OPS.softmax(x).sum().backward(), 2)
    assert shown["kernel_registry::softmax"] == 2
    assert {name.partition(" ")[0]: count for name, count in shown.items() if "(" in name} == {
        "kernel_registry::softmax": 2,
        "kernel_registry::softmax_backward": 2,
    }


@pytest.mark.thorough
def test_a_packed_weight_is_named() -> None:
    weight = registry.quantize(torch.randn(32, 64, dtype=torch.bfloat16), bits=4, group_size=32)
    a = torch.randn(4, 64, dtype=torch.bfloat16)
    (name,) = events(lambda: registry.call("gemm_int4", a, weight), 2)
    assert name.startswith("kernel_registry::gemm_int4 (")
    assert flops(lambda: registry.call("gemm_int4", a, weight)) == {"gemm_int4": 2 * 4 * 32 * 64}


@pytest.mark.parametrize(
    "way",
    [
        lambda: registry.call("softmax", X),
        lambda: OPS.softmax(X),
        lambda: registry.call("softmax", torch.empty(6, 50, device="meta")),
    ],
    ids=["call", "operator", "meta"],
)
def test_a_flop_counter_counts_the_ops_floor(way: Callable[[], Any]) -> None:
    expected = {"softmax": softmax_flop(X)}
    assert flops(way) == expected
    with torch.inference_mode():
        assert flops(way) == expected


def test_a_gradients_operations_are_counted_too() -> None:
    x = X.clone().requires_grad_()
    found = flops(lambda: registry.call("softmax", x).sum().backward())
    assert found["softmax"] == softmax_flop(X)
    assert found["softmax_backward"] > 0


def test_an_authors_formula_stays() -> None:
    packet = OPS.softmax
    with FlopCounterMode(display=False, custom_mapping={packet: lambda *_, **__: 7}) as counter:
        count_flops(registry.ops()["softmax"], packet)
        registry.call("softmax", X)
    assert counter.get_total_flops() == 7
