"""Specs of a call's arguments, never their data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul
from typing import Any, Literal, TypeVar

import torch

from ..errors import InvalidArgumentError, UnknownNameError

Value = int | float | str | bool
"""The value of a dimension, a trait, a configuration's parameter or an attribute."""

_Kind = TypeVar("_Kind")

MatrixLayout = Literal["row-major", "transposed", "other"]
"""Class of a tensor's strides. Transposed: row-major with the last two dimensions exchanged."""

_CPU = torch.device("cpu")

FULL_ALIGNMENT = 16
"""Bytes; a pointer that is a multiple of it can be read with the widest loads."""

_IN_MEMORY = frozenset({torch.Tensor, torch.nn.Parameter})


def alignment_of(address: int) -> int:
    """The greatest power of two, at most 16, that divides the address in bytes."""
    low = address & FULL_ALIGNMENT - 1
    return low & -low or FULL_ALIGNMENT


def fits_int32(value: int) -> bool:
    """True if kernels get the number as a 32-bit integer."""
    return -(2**31) <= value < 2**31


@lru_cache(maxsize=64)
def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=64)
def torch_dtype(name: str) -> torch.dtype:
    """``"bfloat16"`` -> ``torch.bfloat16``; raises InvalidArgumentError for anything else."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(f"{name!r} is not a torch dtype", hint="expected e.g. float32, float16 or bfloat16")
    return dtype


@lru_cache(maxsize=4096)
def strides_before(further: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor with a first dimension, which is mostly the one that grows, and ``further``.

    A dimension without elements counts as one with one.
    """
    return (*accumulate((max(size, 1) for size in reversed(further)), mul, initial=1),)[::-1]


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
        device = tensor.device
        address = tensor.data_ptr() if type(tensor) in _IN_MEMORY and device.type != "meta" else 0
        return quick_spec(tensor.shape, tensor.dtype, tensor.stride(), device, alignment_of(address))

    @classmethod
    def contiguous(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = _CPU) -> TensorSpec:
        """A row-major, aligned tensor of that shape."""
        strides = strides_before(tuple(shape[1:])) if shape else ()
        spec: TensorSpec = object.__new__(cls)
        spec.__dict__.update(shape=tuple(shape), dtype=dtype, strides=strides, device=device, alignment=FULL_ALIGNMENT)
        return spec

    @property
    def numel(self) -> int:
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

    @property
    def is_expanded(self) -> bool:
        """Whether several elements share their memory, as in what ``torch.Tensor.expand`` returns."""
        return any(stride == 0 and size > 1 for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def layout(self) -> MatrixLayout:
        """The class of the tensor's strides; if both row-major and transposed, row-major."""
        if self.is_contiguous:
            return "row-major"
        return "transposed" if len(self.shape) >= 2 and self.moved(-2, -1).is_contiguous else "other"

    def moved(self, source: int, destination: int) -> TensorSpec:
        """The view in which one dimension stands in another place, as ``torch.movedim`` has it."""
        places = list(range(len(self.shape)))
        place = places.pop(source)
        places.insert(destination % len(self.shape), place)
        shape, strides = tuple(self.shape[place] for place in places), tuple(self.strides[place] for place in places)
        return replace(self, shape=shape, strides=strides)

    def misaligned(self) -> TensorSpec:
        """This spec for a tensor that does not start at a multiple of 16 bytes."""
        return replace(self, alignment=min(self.dtype.itemsize, FULL_ALIGNMENT // 2))

    def empty(self, device: torch.device | None = None) -> torch.Tensor:
        """An uninitialised tensor with this shape, dtype and strides."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device or self.device)


def quick_spec(
    shape: Iterable[int],
    dtype: torch.dtype,
    strides: tuple[int, ...],
    device: torch.device,
    alignment: int = FULL_ALIGNMENT,
) -> TensorSpec:
    """A spec, made in a third of the time that the dataclass's own ``__init__`` takes."""
    spec = object.__new__(TensorSpec)
    own = spec.__dict__
    own["shape"], own["dtype"], own["strides"], own["device"] = tuple(shape), dtype, strides, device
    own["alignment"] = alignment
    return spec


Argument = TensorSpec | tuple[TensorSpec, ...] | tuple[int, ...] | Value | None
"""One argument's value: the specs of a ``Tensor[]`` and the numbers of an ``int[]`` are tuples."""


_Item = TypeVar("_Item")


class _ReadableAsDict(Mapping[str, _Item]):
    """A mapping that records reads and offers what a dict offers to readers: its text, ``|``, ``copy``, ``reversed``.

    Each of these reads every value. A copy or a pickle is a dict, which records nothing more.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(dict(self))

    def __or__(self, other: object) -> dict[str, Any]:
        return dict(self) | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: object) -> dict[str, Any]:
        return dict(other) | dict(self) if isinstance(other, Mapping) else NotImplemented

    def __reversed__(self) -> Iterator[str]:
        return reversed(dict(self))

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)

    def copy(self) -> dict[str, _Item]:
        """A dict of these values."""
        return dict(self)


class _SeenArguments(_ReadableAsDict[Argument]):
    """The values of a call's arguments by schema name; adds to ``seen`` the name of each attribute that is read.

    An attribute that is not read before a plan has run cannot matter to the plan, and may differ in the next call.
    """

    __slots__ = ("_all", "_seen")

    def __init__(self, values: Mapping[str, Argument], seen: set[str]) -> None:
        self._all = values
        self._seen = seen

    def __getitem__(self, name: str) -> Argument:
        value = self._all[name]
        if type(value) is not TensorSpec and not (type(value) is tuple and value and type(value[0]) is TensorSpec):
            self._seen.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class WatchedValues(_ReadableAsDict[Value]):
    """Values by name, such as dimensions; ``read`` is the set of names that were read."""

    __slots__ = ("_values", "read")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        value = self._values[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        self.read.update(self._values)
        return len(self._values)


_Made = TypeVar("_Made")


class _RecordedReads:
    """Slots of arguments that ``repr``, ``vars`` and ``dataclasses.asdict`` leave out: reading them records nothing."""

    __slots__ = ("seen", "unrecorded")

    unrecorded: Mapping[str, Argument]
    seen: set[str] | None


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Arguments(_RecordedReads):
    """An op's arguments by schema name, in the schema's order: specs of tensors and plain values, never data.

    ``gradient``: whether autograd records the call; False without a call, e.g. for a problem of a shapes file.
    ``unrecorded`` are ``values`` for the host's code that decides nothing by an attribute's value: no name counts as
    read. ``seen`` is the set of names of the attributes that were read; None where reads are not recorded. The text, a
    copy and a comparison of arguments read all attributes, and a copy records nothing more.
    """

    op: str
    gradient: bool

    def __init__(
        self, op: str, values: Mapping[str, Argument], gradient: bool = False, seen: set[str] | None = None
    ) -> None:
        # a new size of a call makes these, and a frozen dataclass takes 6 times as long to set its fields
        own = self.__dict__
        own["op"], own["gradient"] = op, gradient
        object.__setattr__(self, "unrecorded", values)
        object.__setattr__(self, "seen", seen)

    def __repr__(self) -> str:
        return f"Arguments(op={self.op!r}, values={dict(self.values)!r}, gradient={self.gradient!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arguments):
            return NotImplemented
        alike = self.op == other.op and self.gradient is other.gradient
        return alike and dict(self.values) == dict(other.values)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return Arguments, (self.op, dict(self.values), self.gradient)

    @cached_property
    def values(self) -> Mapping[str, Argument]:
        """The values by name. Reading one records its name in ``read``, if it is an attribute."""
        return self.unrecorded if self.seen is None else _SeenArguments(self.unrecorded, self.seen)

    @property
    def read(self) -> frozenset[str]:
        """Names of the attributes that were read so far; all of them if reads are not recorded."""
        return frozenset(self.unrecorded if self.seen is None else self.seen)

    def read_by(self, function: Callable[[], _Made]) -> tuple[_Made, frozenset[str]]:
        """The result of ``function()``, and the names of the attributes that it read."""
        read = self.seen
        if read is None:
            return function(), self.read
        before = set(read)
        read.clear()  # not replaced: views of these arguments share this set
        try:
            made = function()
            return made, frozenset(read)
        finally:
            read.update(before)

    def watched(self) -> Arguments:
        """A copy of these arguments that records reads, with none so far."""
        return Arguments(self.op, self.unrecorded, self.gradient, set())

    def __getitem__(self, name: str) -> Argument:
        try:
            return self.values[name]
        except KeyError:
            raise UnknownNameError("argument", name, self.unrecorded, f"of {self.op}") from None

    def tensor(self, name: str) -> TensorSpec:
        """The spec of a tensor that must be there."""
        value = self.unrecorded.get(name)
        return value if type(value) is TensorSpec else self._of_kind(name, TensorSpec, "a tensor")

    def optional_tensor(self, name: str) -> TensorSpec | None:
        """The spec of a tensor that may be None."""
        value = self.unrecorded.get(name)
        return value if isinstance(value, TensorSpec) else None if self[name] is None else self.tensor(name)

    def tensors_of(self, name: str) -> tuple[TensorSpec, ...]:
        """The specs of a ``Tensor[]`` argument, or of a ``Tensor`` or ``Tensor?`` as a tuple of one or none."""
        return specs_in(self[name])

    def integers(self, name: str) -> tuple[int, ...]:
        """The numbers of an ``int[]``."""
        return tuple([number for number in self._of_kind(name, tuple, "an int[]") if isinstance(number, int)])

    def integer(self, name: str) -> int:
        """An int attribute (the schema has coerced it)."""
        value = self.unrecorded.get(name)
        if type(value) is not int:
            return self._of_kind(name, int, "an int")
        if self.seen is not None:
            self.seen.add(name)
        return value

    def number(self, name: str) -> float:
        """A float or Scalar attribute (the schema has coerced it)."""
        return float(self._of_kind(name, (int, float), "a number"))

    def text(self, name: str) -> str:
        """A str attribute (the schema has coerced it)."""
        return self._of_kind(name, str, "a str")

    def flag(self, name: str) -> bool:
        """A bool attribute (the schema has coerced it)."""
        return self._of_kind(name, bool, "a bool")

    def _of_kind(self, name: str, kind: type[_Kind] | tuple[type[_Kind], ...], told: str) -> _Kind:
        value = self.unrecorded.get(name)
        if isinstance(value, kind) and kind is not tuple:  # a tuple may hold specs, which do not count as read
            if self.seen is not None:
                self.seen.add(name)
            return value
        value = self[name]
        if not isinstance(value, kind):
            hint = f"arguments[{name!r}] is None where it is not given" if value is None else ""
            if isinstance(value, TensorSpec):
                hint = f"arguments.tensor({name!r}) returns the spec of a tensor"
            got = "a tensor" if isinstance(value, TensorSpec) else f"{value!r:.80}"
            raise InvalidArgumentError(f"{self.op}: {name} must be {told}, got {got}", hint=hint)
        return value

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors that are there, by name; those of a list as ``xs[0]``, ``xs[1]`` and so on."""
        found: dict[str, TensorSpec] = {}
        for name, value in self.unrecorded.items():
            if isinstance(value, TensorSpec):
                found[name] = value
            elif isinstance(value, tuple):
                found |= {f"{name}[{place}]": spec for place, spec in enumerate(specs_in(value))}
        return found

    def mapped(self, change: Callable[[TensorSpec], TensorSpec]) -> Arguments:
        """These arguments with ``change`` applied to the spec of every tensor."""

        def changed(value: Argument) -> Argument:
            if isinstance(value, TensorSpec):
                return change(value)
            if isinstance(value, tuple) and (specs := specs_in(value)):
                return tuple(change(spec) for spec in specs)
            return value

        values: Mapping[str, Argument] = {name: changed(value) for name, value in self.unrecorded.items()}
        return Arguments(self.op, values, self.gradient, self.seen)


def specs_in(value: Argument) -> tuple[TensorSpec, ...]:
    if isinstance(value, TensorSpec):
        return (value,)
    return tuple(one for one in value if isinstance(one, TensorSpec)) if isinstance(value, tuple) else ()
