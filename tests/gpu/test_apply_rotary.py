"""apply_rotary and its gradient on a GPU: layouts of models, captured graphs, gradients that are not needed."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry
from registry.contracts import APPLY_ROTARY, APPLY_ROTARY_BACKWARD

HEADS, KV_HEADS, WIDTH, ROWS = 8, 2, 128, 512
NAMES = ("torch.native", "triton.block", "torch.compile")
Tensors = tuple[torch.Tensor, ...]


def table(part: int = WIDTH) -> torch.Tensor:
    angles = torch.outer(torch.arange(float(ROWS)), 10_000.0 ** (-torch.arange(0, part, 2) / part))
    return torch.cat((angles.cos(), angles.sin()), -1).cuda()


def given(layout: str, batch: int, seq: int) -> Tensors:
    """Queries and keys [batch, seq, heads, width]."""
    half = {"device": "cuda", "dtype": torch.bfloat16}
    if layout == "rows":
        return tuple(torch.randn(batch, seq, count, WIDTH, **half) for count in (HEADS, KV_HEADS))
    if layout == "heads first":
        return tuple(torch.randn(batch, count, seq, WIDTH, **half).transpose(1, 2) for count in (HEADS, KV_HEADS))
    fused = torch.randn(batch, seq, HEADS + 2 * KV_HEADS, WIDTH, **half)
    return fused[:, :, :HEADS], fused[:, :, HEADS : HEADS + KV_HEADS]


def close(found: Tensors, right: Tensors) -> None:
    for one, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("layout", ["rows", "heads first", "fused"])
@pytest.mark.parametrize(("batch", "seq", "part"), [(1, 1, WIDTH), (3, 77, WIDTH), (2, 300, 48)])
def test_layouts_of_models_and_their_gradients(
    name: str, is_neox: bool, layout: str, batch: int, seq: int, part: int
) -> None:
    positions = torch.randint(ROWS, (1, seq), device="cuda").expand(batch, seq)
    query, key = (x.requires_grad_() for x in given(layout, batch, seq))
    rest = (WIDTH, table(part), is_neox)
    wide = table(part).double()
    with registry.using(apply_rotary=name, apply_rotary_backward=name):
        found = registry.call("apply_rotary", positions, query, key, *rest)
        slopes = [torch.randn_like(x).transpose(1, 2).contiguous().transpose(1, 2) for x in found]
        grads = torch.autograd.grad(found, (query, key), slopes)
    close(found, APPLY_ROTARY.reference(positions, query.double(), key.double(), WIDTH, wide, is_neox))
    close(grads, APPLY_ROTARY_BACKWARD.reference(*[x.double() for x in slopes], positions, wide, WIDTH, is_neox))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
def test_gradients_that_are_not_needed_are_empty(name: str, needs: tuple[bool, bool]) -> None:
    if name == "triton.block" and not any(needs):
        pytest.skip("it computes no gradient at all")
    positions, grads = torch.randint(ROWS, (3, 50), device="cuda"), given("rows", 3, 50)
    with registry.using(apply_rotary_backward=name):
        found = registry.call("apply_rotary_backward", *grads, positions, table(), WIDTH, True, *needs)
    wide = [x.double() for x in grads]
    close(found, APPLY_ROTARY_BACKWARD.reference(*wide, positions, table().double(), WIDTH, True, *needs))


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_graph_rotates_by_the_positions_of_its_replay(name: str) -> None:
    positions, (query, key), cache = (
        torch.zeros((2, 5), dtype=torch.int64, device="cuda"),
        given("fused", 2, 5),
        table(),
    )
    with registry.using(apply_rotary=name):
        registry.call("apply_rotary", positions, query, key, WIDTH, cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = registry.call("apply_rotary", positions, query, key, WIDTH, cache)
    for _ in range(3):
        positions.copy_(torch.randint(ROWS, (2, 5)))
        query.copy_(torch.randn_like(query))
        graph.replay()
        right = APPLY_ROTARY.reference(positions, query.double(), key.double(), WIDTH, cache.double())
        close(found, right)


@pytest.mark.parametrize("name", NAMES)
def test_one_position_of_no_dimension(name: str) -> None:
    position, (query, key) = torch.tensor(7, device="cuda"), given("rows", 1, 1)
    values = (position, query[0, 0], key[0, 0], WIDTH)
    with registry.using(apply_rotary=name):
        found = registry.call("apply_rotary", *values, table())
    close(found, APPLY_ROTARY.reference(position, *(x.double() for x in values[1:3]), WIDTH, table().double()))
