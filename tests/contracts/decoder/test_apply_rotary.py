"""apply_rotary and its gradient: every style and layout, what they refuse, and mutants that the tolerance refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import registry
from registry.contracts import APPLY_ROTARY as OP
from registry.contracts import APPLY_ROTARY_BACKWARD as BACKWARD
from registry.contracts import ROTARY_EMBEDDING
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import InvalidArgumentError, OutOfRangeError

from ...tiers import one_of_each
from ..accepting import accepted
from .rotations import close, rotated, table

Tensor = torch.Tensor
NAMES = ("torch.native", "cpp.heads", "reference")
KERNELS = NAMES[:2]


def run(name: str, *values: Any) -> tuple[Tensor, Tensor]:
    """Both results, with a gradient by the backward op of that name."""
    if name == "reference":
        found: tuple[Tensor, Tensor] = OP.reference(*values)
        return found
    with registry.using(apply_rotary=name, apply_rotary_backward=name):
        return registry.call(OP.name, *values)  # type: ignore[no-any-return]


def right(positions: Tensor, x: Tensor, size: int, cache: Tensor, is_neox: bool) -> Tensor:
    """``x`` rotated in float64, with a gradient."""
    heads = x if x.dim() == positions.dim() + 2 else x.unflatten(-1, (-1, size))
    return rotated(positions, heads, cache, is_neox).reshape(x.shape)


def check(name: str, positions: Tensor, query: Tensor, key: Tensor, cache: Tensor, size: int, is_neox: bool) -> None:
    """Rotated tensors and gradients are right and row-major, and the arguments unchanged."""
    given = [x.detach().requires_grad_() for x in (query, key)]
    before = [x.clone() for x in (query, key)]
    outputs = run(name, positions, *given, size, cache, is_neox)
    slopes = [torch.randn_like(x) for x in outputs]
    grads = torch.autograd.grad(outputs, given, slopes)
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = [right(positions, x, size, cache, is_neox) for x in wide]
    slopes = [x.double() for x in slopes]
    for x, was, found, wanted in zip(given, before, outputs, expected, strict=True):
        assert found.is_contiguous()
        assert (found.shape, found.dtype) == (x.shape, x.dtype)
        close(found.detach(), wanted.detach())
        assert torch.equal(x, was)
    for found, wanted in zip(grads, torch.autograd.grad(expected, wide, slopes), strict=True):
        close(found, wanted)


@pytest.mark.parametrize(
    ("name", "is_neox", "dtype"),
    one_of_each(
        itertools.product(NAMES, (True, False), (torch.float32, torch.bfloat16, torch.float16)),
        lambda name, is_neox, dtype: (name, is_neox),
    ),
)
@pytest.mark.few(3)
def test_new_tensors_are_rotated_and_have_gradients(name: str, is_neox: bool, dtype: torch.dtype) -> None:
    both = ((True, torch.int64, dtype), (False, torch.int32, torch.float32))
    for place, (leading, heads, kv_heads, width, part) in enumerate(
        (((5,), 4, 2, 64, 64), ((2, 3), 3, 1, 20, 10), ((), 9, 9, 96, 42), ((70,), 1, 1, 8, 2))
    ):
        # C++ is compiled for each width and form: the two styles together have all
        for flat, kind, wide in both[(place + is_neox) % 2 :][:1] if name.startswith("cpp") else both:
            positions = torch.randint(50, leading).to(kind)
            given = [torch.randn(*leading, count, width).to(dtype) for count in (heads, kv_heads)]
            given = [x.flatten(-2) for x in given] if flat else given
            check(name, positions, *given, table(50, part, wide), width, is_neox)


def heads_first(count: int) -> Tensor:
    """[batch, seq, heads, head_dim] of a tensor with heads before tokens, as transformers passes them."""
    return torch.randn(2, count, 5, 16).transpose(1, 2)


@pytest.mark.parametrize("name", NAMES)
def test_heads_before_tokens_and_positions_that_sequences_share(name: str) -> None:
    cache = table(9, 12, torch.float32)
    shared, own = torch.tensor([[4, 0, 3, 8, 1]]).expand(2, 5), torch.randint(9, (2, 5))
    check(name, shared, torch.randn(2, 5, 4, 16), torch.randn(2, 5, 2, 16), cache, 16, True)
    check(name, own, heads_first(4), heads_first(2), cache, 16, True)
    check(name, shared, heads_first(4), torch.randn(2, 5, 2, 16), cache, 16, True)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_fused_tensors_and_of_tables_are_read_where_they_are(name: str) -> None:
    query, key, _ = torch.randn(7, 8 * 16).split([4 * 16, 2 * 16, 2 * 16], -1)
    cache = table(9, 20, torch.float32)[:, 2:14]
    check(name, torch.randint(9, (7,)), query, key, cache, 16, False)
    check(name, torch.randint(9, (7,)), query.unflatten(-1, (4, 16)), key.unflatten(-1, (2, 16)), cache, 16, False)


def test_other_layouts_are_left_to_torch() -> None:
    positions, cache = torch.tensor([3, 0]), table(9, 8, torch.float32)
    query, key = torch.randn(2, 8, 3).transpose(1, 2), torch.randn(2, 1, 8)
    close(registry.call(OP.name, positions, query, key, 8, cache)[0], right(positions, query, 8, cache, True))
    with pytest.raises(registry.UnsupportedError, match="sequences of query are not evenly spaced, or the elements"):
        run("cpp.heads", positions, query, key, 8, cache, True)


@pytest.mark.parametrize("name", NAMES)
def test_an_expanded_gradient(name: str) -> None:
    positions, query, cache = torch.tensor([3, 0, 8]), torch.randn(3, 2, 8), table(9, 8, torch.float32)
    x = query.requires_grad_()
    with registry.using(apply_rotary=name) if name in KERNELS else registry.using():
        registry.call(OP.name, positions, x, torch.randn(3, 1, 8), 8, cache)[0].sum().backward()
    wide = query.detach().double().requires_grad_()
    right(positions, wide, 8, cache, True).sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    close(x.grad, wide.grad)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
def test_gradients_that_are_not_needed_are_empty(name: str, needs: tuple[bool, bool]) -> None:
    grads, positions = (torch.randn(3, 4, 8), torch.randn(3, 2, 8)), torch.tensor([3, 0, 8])
    cache = table(9, 8, torch.float32)
    both = BACKWARD.reference(*grads, positions, cache, 8, True)
    with registry.using(apply_rotary_backward=name):
        found = registry.call(BACKWARD.name, *grads, positions, cache, 8, True, *needs)
    for one, all_of_it, needed in zip(found, both, needs, strict=True):
        torch.testing.assert_close(one, all_of_it if needed else one.new_empty(0))


@pytest.mark.parametrize("needed", [0, 1])
def test_one_argument_alone_may_need_a_gradient(needed: int) -> None:
    given = [torch.randn(3, 4, 8), torch.randn(3, 2, 8)]
    given[needed].requires_grad_()
    outputs = registry.call(OP.name, torch.tensor([3, 0, 8]), *given, 8, table(9, 8, torch.float32))
    sum((x.square().sum() for x in outputs), torch.zeros(())).backward()
    # a rotation keeps lengths
    torch.testing.assert_close(given[needed].grad, 2 * given[needed].detach())
    assert given[1 - needed].grad is None


def test_gradients_in_float64() -> None:
    cache = table(9, 4, torch.float64)

    def both(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return registry.call(OP.name, torch.tensor([3, 8]), query, key, 6, cache, False)  # type: ignore[no-any-return]

    given = [torch.randn(2, count, 6, dtype=torch.float64, requires_grad=True) for count in (2, 1)]
    assert torch.autograd.gradcheck(both, given)


def test_tokens_and_the_heads_of_keys_may_be_none() -> None:
    cache, none = table(9, 8, torch.float32), torch.empty(0, dtype=torch.int64)
    query, key = registry.call(OP.name, none, torch.empty(0, 16), torch.empty(0, 8), 8, cache)
    assert (query.shape, key.shape) == ((0, 16), (0, 8))
    given, positions = torch.randn(2, 16, requires_grad=True), torch.tensor([1, 2])
    query, key = registry.call(OP.name, positions, given, torch.empty(2, 0), 8, cache)
    close(query.detach(), right(positions, given.detach(), 8, cache, True))
    query.square().sum().backward()
    torch.testing.assert_close(given.grad, 2 * given.detach())


@pytest.mark.parametrize("op", [OP, BACKWARD, ROTARY_EMBEDDING], ids=lambda op: op.name)
def test_no_position_is_read_by_the_host(op: registry.Op) -> None:
    with FakeTensorMode() as mode:
        position, query, key = torch.zeros((), dtype=torch.int64), torch.ones(2, 8), torch.ones(1, 8)
        cache = torch.ones(9, 8)
        # a fake tensor has no number: reading one is an error
        if op is BACKWARD:
            op.reference(query, key, position, cache, 8, True)
        else:
            op.reference(position, query, key, 8, cache, True)
    assert mode is not None


def _changed(op: registry.Op, **changes: Callable[[Any], Any]) -> Callable[..., Any]:
    """The reference with some arguments changed."""

    def compute(*values: Any) -> Any:
        named = dict(zip(op.parsed.names, values, strict=True))
        return op.reference(*{**named, **{name: change(named[name]) for name, change in changes.items()}}.values())

    return compute


def _sines_backwards(cache: Tensor) -> Tensor:
    half = cache.shape[1] // 2
    return torch.cat((cache[:, :half], -cache[:, half:]), -1)


def _query(op: registry.Op, change: Callable[[Tensor, Tensor], Any]) -> Callable[..., Any]:
    """The reference, then ``change(result, x)`` of query's [tokens, heads, 24]."""

    def compute(*values: Any) -> Any:
        query, key = op.reference(*values)
        given = values[0] if op is BACKWARD else values[1]
        change(query.view(-1, 3, 24), given.view(-1, 3, 24))
        return query, key

    return compute


def _copied(where: Any) -> Callable[[Tensor, Tensor], Any]:
    return lambda result, x: result.__setitem__(where, x[where])


def _halved(op: registry.Op) -> Callable[..., Any]:
    """In bfloat16, whatever the dtype is."""

    def compute(*values: Any) -> Any:
        low = [x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x for x in values]
        given = values[:2] if op is BACKWARD else values[1:3]
        return tuple(
            torch.cat(
                (found.view(*x.shape[:-1], -1, 24)[..., :16].to(x.dtype), x.unflatten(-1, (-1, 24))[..., 16:]), -1
            ).flatten(-2)
            for found, x in zip(op.reference(*low), given, strict=True)
        )

    return compute


def mutants(op: registry.Op) -> Mapping[str, Callable[..., Any]]:
    first = "grad_rotated_query" if op is BACKWARD else "query"
    return {
        "nothing is rotated": lambda *values: tuple(x.clone() for x in (values[:2] if op is BACKWARD else values[1:3])),
        "the other style": _changed(op, is_neox=lambda neox: not neox),
        "the position after it": _changed(op, positions=lambda p: (p + 1) % 36),
        "the position of the token before": _changed(op, positions=lambda p: p.roll(1)),
        "the other direction": _changed(op, cos_sin_cache=_sines_backwards),
        "cosines for sines": _changed(op, cos_sin_cache=lambda c: c.roll(c.shape[1] // 2, 1)),
        "angles of the pair before": _changed(op, cos_sin_cache=lambda c: c.roll(1, 1)),
        "query is wrong by a hundredth": _changed(op, **{first: lambda x: x * 1.01}),
        "the last token is not rotated": _query(op, _copied(-1)),
        "the last head is not rotated": _query(op, _copied((slice(None), -1))),
        "the last pair is not rotated": _query(op, _copied((..., 15))),
        "one position for all": _changed(op, positions=lambda p: p[:1].expand_as(p)),
        "the rest of a head is cleared": _query(op, lambda result, x: result[..., 16:].zero_()),
        "the rest of a head is rounded": _query(op, lambda result, x: result[..., 16:].mul_(1 + 2.0**-8)),
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("op", [OP, BACKWARD], ids=lambda op: op.name)
@pytest.mark.few(4)
def test_the_tolerance_accepts_what_is_right_and_refuses_mutants(op: registry.Op, style: str, dtype: str) -> None:
    dims = {"tokens": 9, "heads": 3, "kv_heads": 2, "head_dim": 24, "rotary_dim": 16, "style": style, "dtype": dtype}
    assert accepted(op, dims, op.reference)
    for name, mutant in mutants(op).items():
        assert not accepted(op, dims, mutant), name
    if dtype != "bfloat16":
        assert not accepted(op, dims, _halved(op))


P, Q, K, C = torch.zeros(3, dtype=torch.int64), torch.ones(3, 16), torch.ones(3, 8), torch.ones(5, 8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((P.float(), Q, K, 8, C), "apply_rotary: positions is float32, expected int64 or int32"),
        ((P, Q[:2], K, 8, C), r"query has shape 2x16 but positions have 3 .*\n.*\[3, heads \* 8\]"),
        ((P, Q, K, 7, C), "query has shape 3x16 but positions have 3 and head_size is 7"),
        ((P, Q, K.view(3, 2, 4), 8, C), "key has shape 3x2x4"),
        ((P, Q, K, 0, C), "head_size must be a positive integer, got 0"),
        ((P, Q[:, :0], K, 8, C), "query has shape 3x0, without a head"),
        ((P, Q, K.half(), 8, C), "query is float32 but key is float16"),
        ((P, Q, K, 8, C.half()), "query is float32 but cos_sin_cache is float16"),
        ((P, Q, K, 8, C[:, :7]), "cos_sin_cache has shape 5x7 but head_size is 8"),
        ((P, Q, K, 8, torch.ones(5, 10)), "cos_sin_cache has shape 5x10 but head_size is 8"),
        ((P, Q.int(), K.int(), 8, C), "query is int32"),
        ((P, Q, None, 8, C), "key must be a Tensor, got None"),
        ((P, Q, K, 8, C[:0]), "cos_sin_cache has shape 0x8"),
    ],
)  # fmt: skip
def test_what_it_refuses(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(OP.name, *args)


def test_the_backward_op_names_its_own_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match="apply_rotary_backward: grad_rotated_key has shape 3x7"):
        registry.call(BACKWARD.name, Q, K[:, :7], P, C, 8)


def test_dimensions_that_no_call_has() -> None:
    dims = {**OP.examples[0], "rotary_dim": 66}
    with pytest.raises(InvalidArgumentError, match="apply_rotary: rotary_dim=66 but head_dim=64"):
        OP.problem_of(dims)


def test_expanded_arguments_and_the_same_one_twice_are_read() -> None:
    same = torch.randn(8).expand(3, 2, 8)
    positions, cache = torch.tensor([1, 2, 3]), table(5, 8, torch.float32)
    for found in registry.call(OP.name, positions, same, same, 8, cache):
        close(found, right(positions, same, 8, cache, True))


def test_a_gradient_of_the_table_is_refused() -> None:
    with pytest.raises(
        registry.UnsupportedError, match=r"cos_sin_cache needs a gradient.*\n.*cos_sin_cache.detach\(\)"
    ):
        registry.call(OP.name, P, Q, K, 8, C.clone().requires_grad_())


def test_a_position_outside_of_the_table_is_found_where_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CHECK", "1")
    # data are checked before any kernel runs: none in C++ is compiled for it
    monkeypatch.setenv("CXX", "no-such-compiler")
    call = Dispatcher(Catalog()).op(OP.name)
    call(P + 4, Q, K, 8, C)
    for wrong, place in ((torch.tensor([0, 5, 0]), r"\[1\] is 5"), (torch.tensor([0, 0, -1]), r"\[2\] is -1")):
        with pytest.raises(OutOfRangeError, match=f"apply_rotary: positions{place}, expected 0 to 4, a row of cos"):
            call(wrong, Q, K, 8, C)
    with pytest.raises(OutOfRangeError, match=r"apply_rotary_backward: positions\[0\] is 5"):
        Dispatcher(Catalog()).op(BACKWARD.name)(Q, K, P + 5, C, 8)


@pytest.mark.thorough
def test_compiled_code_has_gradients() -> None:
    cache = table(5, 8, torch.float32)

    def rotate(query: Tensor, key: Tensor) -> Tensor:
        rotated_query, rotated_key = registry.call(OP.name, P + 2, query, key, 8, cache)
        return (rotated_query[:, :8] * rotated_key).sum()

    compiled = torch.compile(rotate, fullgraph=True, backend="aot_eager")
    given = [torch.randn(3, 16, requires_grad=True), torch.randn(3, 8, requires_grad=True)]
    expected = torch.autograd.grad(rotate(*given), given)
    for found, wanted in zip(torch.autograd.grad(compiled(*given), given), expected, strict=True):
        torch.testing.assert_close(found, wanted)
