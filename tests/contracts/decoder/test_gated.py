"""silu_and_mul and gelu_and_mul: what they are, what they refuse, and mutants that their tolerances refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import registry
from registry.contract import Op
from registry.contracts import GELU_AND_MUL, GELU_AND_MUL_BACKWARD, SILU_AND_MUL, SILU_AND_MUL_BACKWARD
from registry.errors import InvalidArgumentError

from ..accepting import accepted

Tensor = torch.Tensor
FORWARD, BACKWARD = (SILU_AND_MUL, GELU_AND_MUL), (SILU_AND_MUL_BACKWARD, GELU_AND_MUL_BACKWARD)
Mutant = Callable[[Op, Tensor, tuple[object, ...]], Tensor]


def _low(op: Op, y: Tensor, values: tuple[object, ...]) -> Tensor:
    rounded = [one.to(torch.float16).to(one.dtype) if isinstance(one, Tensor) else one for one in values]
    return op.reference(*rounded)  # type: ignore[return-value]


def _swapped(op: Op, y: Tensor, values: tuple[object, ...]) -> Tensor:
    changed = [
        torch.cat(one.chunk(2, -1)[::-1], -1) if isinstance(one, Tensor) and name == "x" else one
        for one, name in zip(values, op.parsed.names, strict=True)
    ]
    return op.reference(*changed)  # type: ignore[return-value]


MUTANTS: dict[str, Mutant] = {
    "halves swapped": _swapped,
    "another row": lambda op, y, values: y.roll(1, 0),
    "last column left out": lambda op, y, values: torch.cat((y[..., :-1], torch.zeros_like(y[..., -1:])), -1),
    "halves of the result swapped": lambda op, y, values: torch.cat(y.chunk(2, -1)[::-1], -1),
    "inputs in float16": _low,
    "wrong by a hundredth": lambda op, y, values: y * 1.01,
}


def _accepted(op: Op, dtype: str, compute: Mutant) -> bool:
    choice = {"approximate": "tanh"} if op.choices else {}
    dims = {"rows": 5, "cols": 258, "dtype": dtype, **choice}
    return accepted(op, dims, lambda *values: compute(op, op.reference(*values), values))  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [*FORWARD, *BACKWARD], ids=lambda op: op.name)
def test_tolerances_accept_the_reference_and_refuse_mutants(op: Op) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        assert _accepted(op, dtype, lambda op, y, values: y)
        for name, mutant in MUTANTS.items():
            if name == "inputs in float16" and dtype != "float32":
                continue
            assert not _accepted(op, dtype, mutant), (dtype, name)


def _exact(op: Op, y: Tensor, values: tuple[object, ...]) -> Tensor:
    return op.reference(*values[:-1], "none")  # type: ignore[return-value]


def test_gelu_of_another_approximation_is_refused() -> None:
    for op in (GELU_AND_MUL, GELU_AND_MUL_BACKWARD):
        assert not _accepted(op, "float32", _exact)


def test_the_first_half_is_activated_and_rows_may_be_none_or_apart() -> None:
    for shape in ((3, 14), (0, 8), (2, 3, 10), (10,)):
        x = torch.randn(shape)
        gate, up = x.chunk(2, -1)
        torch.testing.assert_close(registry.call("silu_and_mul", x), torch.nn.functional.silu(gate) * up)
        torch.testing.assert_close(registry.call("gelu_and_mul", x), torch.nn.functional.gelu(gate) * up)
    apart = torch.randn(12, 6).t()
    torch.testing.assert_close(registry.call("silu_and_mul", apart), registry.call("silu_and_mul", apart.contiguous()))


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        ("silu_and_mul", (torch.ones(3, 7),), "3x7, whose last dimension is not two halves"),
        ("gelu_and_mul", (torch.ones(()),), "scalar, whose last dimension is not two halves"),
        ("silu_and_mul", (torch.ones(2, 4, dtype=torch.int32),), "x is int32"),
        ("silu_and_mul_backward", (torch.ones(3, 8), torch.ones(3, 8)), "grad_y is 3x8 but x is 3x8"),
    ],
)
def test_what_does_not_fit_is_told(op: str, values: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        registry.call(op, *values)
