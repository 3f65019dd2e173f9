"""Specs of arguments and the problem they pose: what is tuned, stored and looked up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from .errors import InvalidArgumentError

Value = int | float | str | bool
"""What a dimension, a trait, a configuration's parameter or an attribute may be."""

_CPU = torch.device("cpu")

# made once: to make one takes longer than what it mostly encodes
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

FULL_ALIGNMENT = 16
"""Bytes; a pointer that is a multiple of it can be read with the widest loads."""


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no blanks, so that equal data are equal text (and ``True`` is not ``1``)."""
    return _CANONICAL.encode(value)


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """``"bfloat16"`` -> ``torch.bfloat16``; raises InvalidArgumentError for anything else."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"{name!r} is not a torch dtype", hint="expected e.g. float32, float16 or bfloat16")
    return dtype


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its data. ``strides`` are in elements, ``alignment`` in bytes (at most 16)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    device: torch.device = _CPU
    alignment: int = FULL_ALIGNMENT

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a real, meta or fake tensor (the last two count as aligned)."""
        concrete = type(tensor) in {torch.Tensor, torch.nn.Parameter} and tensor.device.type != "meta"
        address = tensor.data_ptr() if concrete else 0
        alignment = min(address & -address, FULL_ALIGNMENT) if address else FULL_ALIGNMENT
        return cls(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), tensor.device, alignment)

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = _CPU) -> TensorSpec:
        """A row-major, aligned tensor of that shape."""
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        return cls(tuple(shape), dtype, tuple(reversed(strides)), device)

    @property
    def numel(self) -> int:
        """Elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, not of the storage."""
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps; dimensions of size one may have any stride."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 0:
                return True
            if stride != step and size != 1:
                return False
            step *= size
        return True

    def empty(self, device: torch.device | None = None) -> torch.Tensor:
        """An uninitialised tensor with this shape, dtype and strides."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device or self.device)


@dataclass(frozen=True)
class Arguments:
    """An op's arguments by schema name, in the schema's order: specs of tensors and plain values, never data."""

    op: str
    values: Mapping[str, TensorSpec | Value | None]

    def __getitem__(self, name: str) -> TensorSpec | Value | None:
        return self.values[name]

    def tensor(self, name: str) -> TensorSpec:
        """The spec of a tensor that must be there."""
        value = self.values[name]
        if not isinstance(value, TensorSpec):
            raise InvalidArgumentError(f"{self.op}: {name} must be a tensor, got {type(value).__name__}")
        return value

    def optional_tensor(self, name: str) -> TensorSpec | None:
        """The spec of a tensor that may be None."""
        return None if self.values[name] is None else self.tensor(name)

    def integer(self, name: str) -> int:
        """An int attribute (the schema has coerced it)."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """A float attribute (the schema has coerced it)."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def text(self, name: str) -> str:
        """A str attribute (the schema has coerced it)."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors that are there, by name."""
        return {name: value for name, value in self.values.items() if isinstance(value, TensorSpec)}


@dataclass(frozen=True, eq=False)
class Problem:
    """One op at one shape, dtype and set of attributes: the unit that is tuned and stored.

    ``dims`` are named dimensions and tuned attributes (``rows``, ``cols``, ``dtype``); they alone make the identity.
    ``traits`` (``contiguous``, ``aligned``, ...) tell an implementation whether it can run; they are not stored.
    A dimension reads as an attribute: ``problem.rows``.
    """

    op: str
    dims: Mapping[str, Value]
    traits: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "traits", MappingProxyType({"contiguous": True, "aligned": True, **self.traits}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.dims[name]
        except KeyError:
            raise AttributeError(f"problem of {self.op} has no dimension {name!r}; it has {list(self.dims)}") from None

    def __reduce__(self) -> tuple[object, ...]:
        return Problem, (self.op, dict(self.dims), dict(self.traits))

    @property
    def key(self) -> str:
        """Canonical JSON of op and dims: two problems are the same when their keys are."""
        return canonical_json({"op": self.op, "dims": dict(self.dims)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype that ``dims["dtype"]`` names."""
        return torch_dtype(str(self.dims["dtype"]))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value}' for name, value in self.dims.items())})"
