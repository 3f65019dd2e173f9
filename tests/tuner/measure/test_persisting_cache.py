"""A part of a GPU's cache may be set aside; cuBLAS does so at a process's first product of integers."""

from __future__ import annotations

import pytest
import torch

from registry.tuner.measure import persisting_cache
from registry.tuner.measure.persisting_cache import keep_persisting, persisting_bytes, use_integers


def test_without_a_gpu_no_cache_persists() -> None:
    keep_persisting(0)
    assert persisting_bytes() == 0


@pytest.mark.parametrize(
    ("dtypes", "device", "multiplied"),
    [
        ([torch.bfloat16, torch.int8], "cuda", True),
        ([torch.bfloat16, torch.int32], "cuda", True),
        ([torch.bfloat16, torch.float8_e4m3fn], "cuda", False),
        ([torch.int8], "cpu", False),
    ],
)
def test_integers_are_multiplied_first_where_a_candidate_may(
    monkeypatch: pytest.MonkeyPatch, dtypes: list[torch.dtype], device: str, multiplied: bool
) -> None:
    on = list[torch.device]()
    monkeypatch.setattr(persisting_cache, "_multiply_integers", on.append)
    use_integers(dtypes, torch.device(device))
    assert on == [torch.device("cuda")] * multiplied


def test_what_the_product_sets_aside_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = [0]
    product = torch._int_mm

    def multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        aside.append(11_796_480)
        return product(one, other)

    monkeypatch.setattr(persisting_cache, "persisting_bytes", lambda: aside[-1])
    monkeypatch.setattr(persisting_cache, "keep_persisting", aside.append)
    monkeypatch.setattr(torch, "_int_mm", multiply)
    persisting_cache._multiply_integers.__wrapped__(torch.device("cpu"))
    assert aside == [0, 11_796_480, 0]
