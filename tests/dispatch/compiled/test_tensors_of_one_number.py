"""Integer tensors without dimensions in compiled programs: a position, an index, a target, and where none may be."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import registry

from ...tiers import one_of_each

Program = Callable[..., Any]

QUERY, KEY, TABLE = torch.randn(2, 16), torch.randn(16), torch.randn(9, 16)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def in_place(position: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
    registry.call("rotary_embedding", position, query, key, 16, TABLE, True)
    return query * 1


def of_the_next(position: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
    query = query * 2
    registry.call("rotary_embedding", position + 1, query, key, 16, TABLE, True)
    return query * 1


def new_tensors(position: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Any:
    return registry.call("apply_rotary", position, query, key, 16, TABLE)


def row(index: torch.Tensor, query: torch.Tensor, _key: torch.Tensor) -> Any:
    return registry.call("embedding", index, TABLE) + query


def loss(target: torch.Tensor, _query: torch.Tensor, key: torch.Tensor) -> Any:
    return registry.call("cross_entropy", key * 2, target)[0] + 1


FORMS = itertools.product(
    (in_place, of_the_next, new_tensors, row, loss),
    ("inductor", "aot_eager"),
    (True, False),
    (torch.int64, torch.int32),
)


@pytest.mark.parametrize(
    ("program", "backend", "dynamic", "dtype"),
    one_of_each(
        [form for form in FORMS if form[0] is not loss or form[3] is torch.int64],
        lambda program, backend, dynamic, dtype: (program, backend),
    ),
)
@pytest.mark.few(4)
def test_one_number_is_taken_as_in_a_plain_call(
    program: Program, backend: str, dynamic: bool, dtype: torch.dtype
) -> None:
    compiled = torch.compile(program, fullgraph=True, backend=backend, dynamic=dynamic)
    for number in (3, 5):
        mine = (torch.tensor(number, dtype=dtype), QUERY.clone(), KEY.clone())
        plain = copy.deepcopy(mine)
        torch.testing.assert_close(compiled(*mine), program(*plain))
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("op", ["rotary_embedding", "apply_rotary", "embedding", "cross_entropy"])
@pytest.mark.parametrize("name", ["torch.native", "torch.compile"])
@pytest.mark.few(2)
def test_implementations_by_torch_take_one_number(op: str, name: str) -> None:
    program = {"rotary_embedding": in_place, "apply_rotary": new_tensors, "embedding": row, "cross_entropy": loss}[op]
    mine = (torch.tensor(4), QUERY.clone(), KEY.clone())
    plain = copy.deepcopy(mine)
    with registry.using(**{op: name}):
        found = program(*mine)
    torch.testing.assert_close(found, program(*plain))
    torch.testing.assert_close(mine, plain)


CACHE = torch.zeros(3, 4, 2, 8)
"""Three blocks of four slots."""

WRONG: dict[str, tuple[tuple[torch.Tensor, ...], str]] = {
    "kv_cache_append": (
        (torch.randn(1, 2, 8), torch.randn(1, 2, 8), CACHE.clone(), CACHE.clone(), torch.tensor(1)),
        "slot_mapping has shape scalar",
    ),
    "attention_decode": ((torch.randn(3, 1, 4, 8), CACHE, CACHE, torch.tensor(1)), "kv_lens "),
    "grouped_gemm": ((torch.randn(4, 8), torch.randn(2, 8, 8), torch.tensor(4)), "offsets has shape scalar"),
}


@pytest.mark.parametrize("op", WRONG)
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.few(2)
def test_where_a_row_of_numbers_is_needed_the_error_is_that_of_a_plain_call(op: str, dynamic: bool) -> None:
    """torch gives what it meets while it traces a class of its own."""
    args, message = WRONG[op]
    with pytest.raises(registry.RegistryError, match=f"^{op}: {message}"):
        registry.call(op, *args)
    compiled = torch.compile(
        lambda *given: registry.call(op, *given), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    with pytest.raises(RuntimeError if op == "kv_cache_append" else registry.RegistryError, match=f"{op}: {message}"):
        compiled(*args)
