"""fused_linear_cross_entropy on a GPU: chunks, targets that are not aligned, capture, other row counts, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from registry.backends.linear_products import add_product
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

Tensor = torch.Tensor
NAME = "fused_linear_cross_entropy"
COLS, K = 2001, 256
CHUNKED: dict[str, dict[str, Any]] = {
    "torch.chunked": {NAME: ("torch.chunked", {"CHUNK": 256}), f"{NAME}_backward": ("torch.chunked", {"CHUNK": 1024})},
    "triton.chunked": {
        NAME: ("triton.chunked", {"CHUNK": 512, "BLOCK": 4096, "num_warps": 16}),
        f"{NAME}_backward": ("triton.chunked", {"CHUNK": 2048, "BLOCK": 1024, "num_warps": 4}),
    },
}


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    yield Dispatcher(Catalog())
    torch.cuda.synchronize()


EACH = pytest.mark.parametrize("form", CHUNKED)


def drawn(rows: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and target; every fifth row is ignored."""
    x = torch.randn(rows, K, device="cuda", dtype=dtype).requires_grad_()
    weight = (torch.randn(COLS, K, device="cuda") * K**-0.5).to(dtype).requires_grad_()
    target = torch.randint(COLS, (rows,), device="cuda")
    target[::5] = -100
    return x, weight, target


def check(dispatcher: Dispatcher, x: Tensor, weight: Tensor, target: Tensor) -> None:
    """Loss and gradients beside those of torch in float64."""
    loss, _ = dispatcher.call(NAME, x, weight, target)
    found = torch.autograd.grad(loss * 64.0, (x, weight))
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    expected = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, target)
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    for one, other in zip(found, torch.autograd.grad(expected * 64.0, wide), strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one.double(), other, atol=0.02 * largest, rtol=0.02)


@EACH
def test_several_chunks_and_other_row_counts_are_right(dispatcher: Dispatcher, form: str) -> None:
    with dispatcher.using(**CHUNKED[form]):
        for rows in (1300, 1, 512, 513, 77, 1300):
            x, weight, target = drawn(rows)
            check(dispatcher, x, weight, target.fill_(3) if rows == 1 else target)


@EACH
def test_targets_that_start_at_8_bytes_are_right(dispatcher: Dispatcher, form: str) -> None:
    with dispatcher.using(**CHUNKED[form]):
        x, weight, tokens = drawn(1301)
        given = x[:-1].detach().requires_grad_()
        check(dispatcher, given, weight, tokens[:-1])
        assert tokens[1:].data_ptr() % 16
        check(dispatcher, given, weight, tokens[1:])
        check(dispatcher, given, weight, tokens[:-1])


@EACH
def test_a_step_is_captured(dispatcher: Dispatcher, form: str) -> None:
    x, weight, target = drawn(1300)

    def step() -> tuple[Tensor, ...]:
        loss, _ = dispatcher.call(NAME, x, weight, target)
        return loss.detach(), *torch.autograd.grad(loss, (x, weight))

    with dispatcher.using(**CHUNKED[form]):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = step()
    for one, other in zip(captured, expected, strict=True):
        torch.testing.assert_close(one, other)


@EACH
def test_all_logits_are_never_held(dispatcher: Dispatcher, form: str) -> None:
    rows = 20_000
    x, weight, target = drawn(rows)
    with dispatcher.using(**CHUNKED[form]):
        for _ in range(2):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            dispatcher.call(NAME, x.detach(), weight.detach(), target)
            torch.cuda.synchronize()
            held = torch.cuda.max_memory_allocated() - before
    assert held < rows * COLS * x.element_size() / 2


# --- loss and gradients at once

GRADIENTS = f"{NAME}_gradients"
AT_ONCE: dict[str, tuple[str, dict[str, Any]]] = {
    "torch.chunked": ("torch.chunked", {"CHUNK": 1024}),
    "triton.chunked": ("triton.chunked", {"CHUNK": 1024, "BLOCK": 4096, "num_warps": 16}),
    "small chunks": ("triton.chunked", {"CHUNK": 256, "BLOCK": 8192, "num_warps": 32}),
}
AT_ONCE_EACH = pytest.mark.parametrize("form", AT_ONCE)


def at_once(dispatcher: Dispatcher, x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Loss and gradients by x and weight."""
    found = dispatcher.call(GRADIENTS, x.detach(), weight.detach(), target, reduction="sum")
    return tuple(found[:3])


def rounding(logits: Tensor, target: Tensor, dtype: torch.dtype) -> float:
    """What rounding one target's logit to dtype changes at most: one row's loss has no others to average it out."""
    taken = logits.gather(1, target.clamp(min=0)[:, None])
    return taken.abs().max().item() * torch.finfo(dtype).eps / 2


@AT_ONCE_EACH
def test_gradients_at_once_are_right_for_several_chunks_and_other_row_counts(dispatcher: Dispatcher, form: str) -> None:
    with dispatcher.using(**{GRADIENTS: AT_ONCE[form]}):
        for rows, shift in ((2600, 0), (1, 0), (1024, 0), (1025, 1), (77, 1), (2600, 1)):
            x, weight, tokens = drawn(rows + shift)
            given, target = x[:rows].detach(), tokens.fill_(3) if rows == 1 else tokens
            loss, *found = at_once(dispatcher, given, weight, target[shift:])
            wide = [each.detach().double().requires_grad_() for each in (given, weight)]
            logits = wide[0] @ wide[1].T
            expected = torch.nn.functional.cross_entropy(logits, target[shift:], reduction="sum")
            assert abs(loss - expected).item() <= 1e-3 * expected.item() + rounding(logits, target[shift:], x.dtype)
            for one, other in zip(found, torch.autograd.grad(expected, wide), strict=True):
                largest = other.abs().max().item()
                torch.testing.assert_close(one.double(), other, atol=0.02 * largest, rtol=0.02)


@AT_ONCE_EACH
def test_gradients_at_once_are_captured(dispatcher: Dispatcher, form: str) -> None:
    x, weight, target = drawn(2600)
    with dispatcher.using(**{GRADIENTS: AT_ONCE[form]}):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            at_once(dispatcher, x, weight, target)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = at_once(dispatcher, x, weight, target)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = at_once(dispatcher, x, weight, target)
    for one, other in zip(captured, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_at_once_hold_a_chunk_of_logits_beside_the_gradients(dispatcher: Dispatcher) -> None:
    rows = 20_000
    x, weight, target = drawn(rows)
    with dispatcher.using(**{GRADIENTS: AT_ONCE["triton.chunked"]}):
        for _ in range(2):
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            at_once(dispatcher, x, weight, target)
            torch.cuda.synchronize()
            held = torch.cuda.max_memory_allocated() - before
    gradients = sum(each.numel() * each.element_size() for each in (x, weight))
    assert held - gradients < rows * COLS * x.element_size() / 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_product_of_halves_is_added_in_float32(dtype: torch.dtype) -> None:
    a = torch.randn(300, 512, device="cuda").to(dtype)
    b = torch.randn(512, 200, device="cuda").to(dtype)
    total = torch.full((300, 200), 1000.0, device="cuda")
    assert add_product(total, a, b) is total
    torch.testing.assert_close(total.double(), 1000.0 + a.double() @ b.double(), atol=2e-3, rtol=0.0)
