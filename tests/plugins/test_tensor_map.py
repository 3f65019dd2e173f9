"""Tensor maps: what the driver is asked for, by matrices and by heads, and the numbers of a launch that come of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from registry.errors import UnsupportedError
from registry_cuda import tensor_map as maps
from registry_cuda.attention.head_tiles import HeadTiles
from registry_cuda.tensor_map import MatrixTiles, Tiles, tensor_map

driver = pytest.importorskip("cuda.bindings.driver")

MATRIX = MatrixTiles("bfloat16", 4096, 14336, 128)
HEADS = HeadTiles("float16", 3, 300, 8, 96, 921_600, 3072, 96, 192)


class Driver:
    """Stands in for the driver's function: it keeps what it is asked for, and gives words that begin with ``first``."""

    def __init__(self, status: Any = driver.CUresult.CUDA_SUCCESS, first: int | None = None) -> None:
        self.asked: list[Sequence[Any]] = []
        self.status = status
        self.first = first

    def __call__(self, *asked: Any) -> tuple[Any, Any]:
        self.asked.append(asked)
        words = [asked[2] if self.first is None else self.first, 1 << 63, *range(2, 16)]
        return self.status, SimpleNamespace(opaque=words)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for kept in (maps._numbers, maps._check_address):
        kept.cache_clear()
    yield
    for kept in (maps._numbers, maps._check_address):
        kept.cache_clear()


def asked_for(monkeypatch: pytest.MonkeyPatch, tiles: Tiles) -> list[Any]:
    """The dtype, rank, sizes, strides in bytes, tile and steps that the driver is asked for."""
    stand_in = Driver()
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", stand_in)
    tensor_map("x", tiles)
    dtype, rank, _, *extents = stand_in.asked[-1][:7]
    return [dtype.name.removeprefix("CU_TENSOR_MAP_DATA_TYPE_"), rank, *[list(map(int, each)) for each in extents]]


@pytest.mark.parametrize(
    ("dtype", "name", "stride", "width"),
    [("bfloat16", "BFLOAT16", 28_672, 64), ("float32", "FLOAT32", 57_344, 32), ("float8_e4m3fn", "UINT8", 14_336, 128)],
)
def test_a_matrix_has_rows_of_tiles_128_bytes_wide(
    monkeypatch: pytest.MonkeyPatch, dtype: str, name: str, stride: int, width: int
) -> None:
    found = asked_for(monkeypatch, MATRIX._replace(dtype=dtype))
    assert found == [name, 2, [14_336, 4096], [stride], [width, 128], [1, 1]]


def test_heads_have_tiles_of_the_rows_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked_for(monkeypatch, HEADS)
    assert found == ["FLOAT16", 4, [96, 300, 8, 3], [6144, 192, 1_843_200], [64, 192, 1, 1], [1, 1, 1, 1]]


def test_the_address_is_the_calls_and_numbers_are_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", Driver())
    assert tensor_map("x", MATRIX) == ("x", -(1 << 63), *range(2, 16))


def test_what_the_driver_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", Driver(driver.CUresult.CUDA_ERROR_INVALID_VALUE))
    with pytest.raises(UnsupportedError, match=r"refused MatrixTiles\(.*: CUDA_ERROR_INVALID_VALUE"):
        tensor_map("x", MATRIX)


def test_maps_that_do_not_begin_with_the_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", Driver(first=7))
    with pytest.raises(UnsupportedError, match="do not begin with the address"):
        tensor_map("x", HEADS)
