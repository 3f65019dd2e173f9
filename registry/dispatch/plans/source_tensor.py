"""A tensor that a prepared form was made from, held without keeping its memory alive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class SourceTensor:
    """A strided view of a storage that is held weakly. ``start`` is the offset in elements from the storage's start."""

    storage: weakref.ref[torch.UntypedStorage]
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, source: Any) -> Any:
        """A tensor as a SourceTensor, every other value as it is."""
        if not isinstance(source, torch.Tensor):
            return source
        storage = weakref.ref(source.untyped_storage())
        return cls(storage, int(source.storage_offset()), tuple(source.shape), source.stride(), source.dtype)

    def tensor(self) -> torch.Tensor | None:
        """A tensor of the storage's current memory; None if that was freed, or emptied by ``resize_(0)``."""
        storage = self.storage()
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        if storage is None or storage.nbytes() < (self.start + last + 1) * self.dtype.itemsize:
            return None
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.start, self.shape, self.strides)
