"""Tensor maps of Hopper's copy engine as numbers of a launch: what a kernel needs to fetch and store whole tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch

from registry import Config, Device, Problem
from registry.artifact import Built, Signature
from registry.backends.cuda import CudaImplementation
from registry.errors import UnsupportedError
from registry.implementation import Run

WIDTH = 128
"""Bytes of a tile's row: those that the swizzle of 128 bytes permutes."""

_NO_NUMBERS = (0,) * 15
_SOME_ADDRESS = 1 << 32
_SIGN = 1 << 63
_KEPT = 4096


class Tiles(Protocol):
    """A tensor as the copy engine sees it, its innermost dimension first, and the part of it that is one tile.

    dtype    torch's name
    sizes    elements of each dimension
    strides  bytes from an index of each dimension but the innermost to the next, multiples of 16
    tile     elements of a tile along each dimension, 128 bytes along the innermost
    """

    def __hash__(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def tile(self) -> tuple[int, ...]: ...


class MatrixTiles(NamedTuple):
    """A row-major matrix of ``rows`` by ``cols`` elements of ``dtype``, in tiles ``height`` rows high, 128 bytes wide.

    ``dtype`` is torch's name; a row of the matrix is a multiple of 16 bytes long.
    """

    dtype: str
    rows: int
    cols: int
    height: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Columns and rows."""
        return self.cols, self.rows

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes of a row."""
        return (self.cols * itemsize(self.dtype),)

    @property
    def tile(self) -> tuple[int, ...]:
        """Columns and rows of a tile."""
        return WIDTH // itemsize(self.dtype), self.height


_TYPES = {
    "bfloat16": ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2),
    "float16": ("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 2),
    "float32": ("CU_TENSOR_MAP_DATA_TYPE_FLOAT32", 4),
    "float8_e4m3fn": ("CU_TENSOR_MAP_DATA_TYPE_UINT8", 1),
}


class TensorMapImplementation(CudaImplementation):
    """Base of implementations whose launches hold tensor maps."""

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind after CUDA is initialised in this process: tensor maps need a context."""
        torch.cuda.init()
        return super().bind(problem, config, device, built)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """Bind loaded kernels after CUDA is initialised in this process: tensor maps need a context."""
        torch.cuda.init()
        return super().bind_loaded(problem, config, device, signature, like)


def itemsize(dtype: str) -> int:
    """Bytes of an element of a type that tensor maps take, by torch's name."""
    return _TYPES[dtype][1]


def tensor_map(tensor: str, tiles: Tiles) -> tuple[str | int, ...]:
    """The 16 arguments of a launch that are the tensor map of ``tensor``: its address, and 15 numbers.

    A kernel takes them as parameters one behind the other (``TENSOR_MAP`` of tensor_map.cuh), so that they make up a
    CUtensorMap in its parameters, and each call brings the address of its own tensor.

    Zeros instead of the numbers in a process that has not used a GPU: what is compiled does not depend on them. Raises
    UnsupportedError if the driver refuses the tiles, or makes maps that do not begin with the address.
    """
    return (tensor, *(_numbers(tiles) if torch.cuda.is_initialized() else _NO_NUMBERS))


@lru_cache(maxsize=_KEPT)
def _numbers(tiles: Tiles) -> tuple[int, ...]:
    _check_address(tiles.dtype)
    # numbers of a launch are signed
    return tuple([word - 2 * (word & _SIGN) for word in _words(tiles, _SOME_ADDRESS)[1:]])


@lru_cache(maxsize=len(_TYPES))
def _check_address(dtype: str) -> None:
    """Raise UnsupportedError unless tensor maps of two tensors differ in their first word, the address, alone."""
    addresses = (_SOME_ADDRESS, 2 * _SOME_ADDRESS)
    first, other = (_words(MatrixTiles(dtype, 256, 256, 16), address) for address in addresses)
    if first[1:] != other[1:] or (first[0], other[0]) != addresses:
        raise UnsupportedError("this driver's tensor maps do not begin with the address of their tensor")


def _words(tiles: Tiles, address: int) -> tuple[int, ...]:
    """The 16 words of the CUtensorMap of a tensor at ``address``."""
    from cuda.bindings import driver
    from cuda.core import Device

    status, words = _encoded(driver, tiles, address)
    if status == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:
        # a thread that has not used CUDA yet has no context
        Device(torch.cuda.current_device()).set_current()
        status, words = _encoded(driver, tiles, address)
    if int(status):
        raise UnsupportedError(f"cuTensorMapEncodeTiled refused {tiles}: {status.name}")
    return words


def _encoded(driver: Any, tiles: Tiles, address: int) -> tuple[Any, tuple[int, ...]]:
    status, found = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, _TYPES[tiles.dtype][0]),
        len(tiles.sizes),
        address,
        [driver.cuuint64_t(size) for size in tiles.sizes],
        [driver.cuuint64_t(stride) for stride in tiles.strides],
        [driver.cuuint32_t(size) for size in tiles.tile],
        [driver.cuuint32_t(1)] * len(tiles.sizes),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return status, () if int(status) else tuple([int(word) for word in found.opaque])
