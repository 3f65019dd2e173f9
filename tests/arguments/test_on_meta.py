"""What is answered for meta tensors without torch's compiler is what torch itself answers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.arguments.on_meta import META, OnMeta

ANSWERED: dict[str, Callable[[torch.device], Any]] = {
    "randn": lambda device: torch.randn((3, 4), dtype=torch.float16, device=device),
    "rand": lambda device: torch.rand(3, 4, device=device),
    "randint": lambda device: torch.randint(-5, 5, (3, 2), device=device),
    "randint to": lambda device: torch.randint(5, (3, 2), dtype=torch.int32, device=device),
    "randint named": lambda device: torch.randint(low=0, high=5, size=(3,), dtype=torch.uint8, device=device),
    "randperm": lambda device: torch.randperm(7, device=device),
    "lookup": lambda device: _ones(5, 3, device=device)[torch.randint(5, (2, 4), device=device)],
    "masked": lambda device: _ones(5, 3, device=device)[:, None],
    "floor": lambda device: torch.arange(9, device=device) // 4,
    "remainder": lambda device: 7 % torch.arange(1, 9, device=device),
    "power": lambda device: 4.0 ** torch.arange(9, device=device),
    "number": lambda device: _ones(3, dtype=torch.float16, device=device) * 2.5,
    "scalar tensor": lambda device: _ones(3, dtype=torch.float16, device=device) + _ones(device=device),
    "promoted": lambda device: _ones(3, 1, dtype=torch.bfloat16, device=device) - _ones(4, device=device),
    "compared": lambda device: _ones(3, 1, device=device) < _ones(1, 4, device=device),
    "quotient": lambda device: torch.arange(3, device=device) / 2,
    "where": lambda device: torch.where(_ones(3, device=device) > 0, -0.5, 0.5),
    "softmax": lambda device: torch.softmax(_ones(3, 4, device=device), -1),
    "transposed": lambda device: _ones(3, 4, device=device).mT * 2,
    "in place": lambda device: _ones(3, dtype=torch.int32, device=device).mul_(2).add_(1),
    "named tensor": lambda device: _ones(3, device=device).clamp(min=_ones(2, 1, device=device)),
    "shifted": lambda device: torch.arange(3, device=device) << 4,
    "row sums": lambda device: _ones(3, 4, dtype=torch.int32, device=device).sum(-1),
    "row maxima": lambda device: _ones(3, 4, 5, dtype=torch.bfloat16, device=device).amax(-1, keepdim=True),
    "mean of all": lambda device: _ones(3, 4, device=device).mean(),
    "running sum": lambda device: _ones(1, 4, device=device).cumsum(0, dtype=torch.float64),
    "added in place": lambda device: _added(_ones(3, 4, device=device), 2.0),
    "zeros": lambda device: torch.zeros_like(_ones(3, 4, dtype=torch.int32, device=device)[:1]),
    "no rows": lambda device: _ones(0, 4, device=device) * _ones(4, device=device),
    "out": lambda device: torch.add(_ones(3, device=device), 1, out=_ones(3, device=device)),
}


def _ones(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def _added(x: torch.Tensor, y: float) -> torch.Tensor:
    x += y
    return x


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_is_torchs_own(name: str) -> None:
    own = ANSWERED[name](META)
    with OnMeta():
        # the mode moves what is made elsewhere
        found = ANSWERED[name](torch.device("cpu"))
    assert found.is_meta
    assert (found.shape, found.dtype, found.stride()) == (own.shape, own.dtype, own.stride())


def test_what_depends_on_data_is_left_to_torch() -> None:
    mask = torch.empty(3, dtype=torch.bool, device=META)
    with pytest.raises(NotImplementedError):
        torch.where(mask)
    with pytest.raises(NotImplementedError), OnMeta():
        torch.where(mask)


def test_shapes_that_do_not_agree_are_refused_in_torchs_words() -> None:
    with pytest.raises(RuntimeError) as own:
        torch.empty(3, device=META) + torch.empty(4, device=META)
    with pytest.raises(RuntimeError, match=re.escape(str(own.value))), OnMeta():
        torch.empty(3, device=META) + torch.empty(4, device=META)
