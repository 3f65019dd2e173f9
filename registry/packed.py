"""Weights of 4 bits: how they are packed, made and unpacked.

The canonical layout, "gptq", is that of GPTQ checkpoints: ``qweight`` is int32 ``[K / 8, N]``, bits along K, and
element ``k`` of a column stands at bit ``4 * (k % 8)`` of word ``k // 8``. A weight is ``(q - zero) * scale``, with a
scale (and a zero point, 0 to 15, stored as a number) for each column and each group of ``group_size`` rows of K.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .errors import InvalidArgumentError
from .problem import TensorSpec, dtype_name

BITS = 4
PER_WORD = 8
LEVELS = 15
SYMMETRIC_ZERO = 8
GROUP_SIZES = (32, 64, 128)
LAYOUT = "gptq"
VERSION = 1
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CHUNK = 2**24
"""Elements that are quantised or unpacked at a time, so that a large weight needs no float32 copy of itself."""


Shaped = torch.Tensor | TensorSpec
"""A tensor or its spec."""


@dataclass(frozen=True, eq=False, repr=False)
class PackedWeight:
    """A linear layer's weight in 4 bits; ``shape`` is the logical one, ``(N, K)`` as ``torch.nn.Linear`` holds it.

    qweight     int32 ``[K / 8, N]``
    scales      ``[K / group_size, N]``, float16, bfloat16 or float32
    zeros       zero points like ``scales``, or None: symmetric, the zero point is 8
    group_size  32, 64, 128, or K (one scale a column)
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_size: int
    shape: tuple[int, int]
    layout: str = LAYOUT
    version: int = VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _logical_shape(self.shape))
        for name in ("qweight", "scales", *(() if self.zeros is None else ("zeros",))):
            _check_tensor(f"PackedWeight: {name}", getattr(self, name))
        _check_integers("PackedWeight", bits=self.bits, group_size=self.group_size, version=self.version)
        if self.version != VERSION:
            raise InvalidArgumentError(
                f"PackedWeight: version {self.version!r}, this is version {VERSION}", hint="quantize the weight again"
            )
        check_format("PackedWeight", self.bits, self.group_size, self.shape[1], self.layout)
        check_parts("PackedWeight", self.qweight, self.scales, self.zeros, self.group_size, self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scales, which activations must have."""
        return self.scales.dtype

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.qweight.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Its tensors, in order; symmetric weights have no zero points."""
        return tuple(tensor for tensor in (self.qweight, self.scales, self.zeros) if tensor is not None)

    def dequantize(self) -> torch.Tensor:
        """The weight ``[N, K]`` in the scales' dtype, computed in float32 and rounded once."""
        pieces = [
            dequantized(qweight, scales, zeros, self.group_size, torch.float32).to(self.dtype).T
            for qweight, scales, zeros in column_pieces(self.qweight, self.scales, self.zeros)
        ]
        return torch.cat(pieces).contiguous()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PackedWeight:
        """A copy of the weight on another device, or with scales and zero points in another dtype."""
        return replace(
            self,
            qweight=self.qweight.to(device=device),
            scales=self.scales.to(device=device, dtype=dtype),
            zeros=None if self.zeros is None else self.zeros.to(device=device, dtype=dtype),
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings only: ``torch.load(weights_only=True)`` reads it back."""
        state = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in state.items() if value is not None}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> PackedWeight:
        """The weight that ``state_dict`` wrote. Raises InvalidArgumentError for missing or unknown entries."""
        if not isinstance(state, Mapping):
            raise InvalidArgumentError(
                f"PackedWeight: its state is a {type(state).__name__}", hint="expected what state_dict() returned"
            )
        missing = [name for name in _FIELDS if name not in state and name != "zeros"]
        unknown = [name for name in state if name not in _FIELDS]
        if missing or unknown:
            raise InvalidArgumentError(
                f"PackedWeight: its state lacks {', '.join(missing) or 'nothing'}"
                f" and has unknown entries {', '.join(unknown) or '(none)'}",
                hint=f"expected {', '.join(_FIELDS)}; zeros may be left out",
            )
        return cls(**{"zeros": None, **state})

    def __repr__(self) -> str:
        kind = "symmetric" if self.zeros is None else "asymmetric"
        return (
            f"PackedWeight({self.shape[0]}x{self.shape[1]}, bits={self.bits}, group_size={self.group_size}, {kind}, "
            f"{dtype_name(self.dtype)}, {self.device}, {self.nbytes} bytes)"
        )


_FIELDS = ("qweight", "scales", "zeros", "bits", "group_size", "shape", "layout", "version")
_TENSORS = ("qweight", "scales", "zeros")
_NUMBERS = tuple(name for name in _FIELDS if name not in _TENSORS)


def _flatten(weight: PackedWeight) -> tuple[list[Any], list[Any]]:
    """Its tensors; their count and the numbers, as they come back from JSON."""
    numbers = [list(weight.shape) if name == "shape" else getattr(weight, name) for name in _NUMBERS]
    return list(weight.tensors), [len(weight.tensors), *numbers]


def _flatten_with_keys(weight: PackedWeight) -> tuple[list[tuple[Any, Any]], list[Any]]:
    tensors, context = _flatten(weight)
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in zip(_TENSORS, tensors, strict=False)], context


def _unflatten(tensors: Iterable[Any], context: Sequence[Any]) -> PackedWeight:
    # unchecked: whoever maps over a tree may put anything in the tensors' places, if only for a while
    weight = object.__new__(PackedWeight)
    count, *numbers = context
    for name, value in zip(_TENSORS, (*tensors, *[None] * (len(_TENSORS) - count)), strict=True):
        _refuse_nested(f"PackedWeight: {name}", value)
        object.__setattr__(weight, name, value)
    for name, value in zip(_NUMBERS, numbers, strict=True):
        object.__setattr__(weight, name, tuple(value) if name == "shape" else value)
    return weight


# torch.export's documentation names this module, underscore or not
pytree.register_pytree_node(
    PackedWeight,
    _flatten,
    _unflatten,
    serialized_type_name="registry.PackedWeight",
    to_dumpable_context=list,
    from_dumpable_context=list,
    flatten_with_keys_fn=_flatten_with_keys,
)
# tensors, numbers and strings: as safe to unpickle as a state dict
torch.serialization.add_safe_globals([PackedWeight])


def quantize(weight: torch.Tensor, bits: int = 4, group_size: int = 128, symmetric: bool = False) -> PackedWeight:
    """Round a weight ``[N, K]`` to 4 bits, to the nearest level, group by group along K.

    group_size 32, 64, 128, or K (or -1) for one scale a column; K must be a multiple of it and of 8.
    symmetric  levels around zero (zero point 8); otherwise the zero point is chosen with the scale.
    Raises InvalidArgumentError for anything else, and for a weight that holds NaN or infinity.
    """
    _check_tensor("quantize: weight", weight)
    _check_integers("quantize", bits=bits, group_size=group_size)
    if not isinstance(symmetric, bool):
        raise InvalidArgumentError(f"quantize: symmetric must be True or False, got {symmetric!r}")
    if weight.device.type == "meta":
        raise InvalidArgumentError("quantize: weight is on meta, so it has no values", hint="load it first")
    if weight.dim() != 2 or weight.numel() == 0:
        raise InvalidArgumentError(f"quantize: weight has shape {tuple(weight.shape)}, expected [N, K] as nn.Linear")
    if weight.dtype not in SCALE_DTYPES:
        raise InvalidArgumentError(
            f"quantize: weight is {dtype_name(weight.dtype)}, expected {', '.join(map(dtype_name, SCALE_DTYPES))}"
        )
    n, k = weight.shape
    size = k if group_size == -1 else group_size
    check_format("quantize", bits, size, k, LAYOUT)
    weight = weight.detach()
    pieces = [_quantize_rows(rows, size, symmetric) for rows in torch.split(weight, max(1, CHUNK // k))]
    qweight, scales, zeros = (torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))
    return PackedWeight(qweight, scales, None if symmetric else zeros, bits, size, (n, k))


def _check_tensor(what: str, value: object) -> None:
    """Raise InvalidArgumentError unless ``value`` is a dense tensor, whose elements lie in memory."""
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError(f"{what} is a {type(value).__name__}, expected a Tensor")
    if value.layout != torch.strided:
        raise InvalidArgumentError(f"{what} is {value.layout}, expected torch.strided", hint="use to_dense()")
    _refuse_nested(what, value)


def _refuse_nested(what: str, value: object) -> None:
    # dispatch relies on it: torch's guard ends the process when it is given one
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InvalidArgumentError(f"{what} is a nested tensor, expected a dense one", hint="use to_padded_tensor(0.0)")


def _check_integers(what: str, **values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{what}: {name} must be an integer, got {value!r}")


def _logical_shape(shape: object) -> tuple[int, int]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else ()
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise InvalidArgumentError(f"PackedWeight: shape {shape!r}", hint="expected two positive integers, (N, K)")
    return sizes


def check_format(what: str, bits: int, group_size: int, k: int, layout: str) -> None:
    """Raise InvalidArgumentError for a format that nobody can read."""
    if bits != BITS:
        raise InvalidArgumentError(f"{what}: bits={bits}, only {BITS} is supported")
    if layout != LAYOUT:
        raise InvalidArgumentError(f"{what}: layout {layout!r}, only {LAYOUT!r} is supported")
    if k < PER_WORD or k % PER_WORD:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of {PER_WORD}, the elements of a word",
            hint="pad the weight and the activations with zeros along K",
        )
    if group_size != k and group_size not in GROUP_SIZES:
        raise InvalidArgumentError(
            f"{what}: group_size={group_size}", hint=f"expected {', '.join(map(str, GROUP_SIZES))} or K={k}"
        )
    if k % group_size:
        raise InvalidArgumentError(
            f"{what}: K={k} is no multiple of group_size={group_size}",
            hint=f"use a group size that divides K, or K={k} itself: one scale a column",
        )


def check_parts(
    what: str, qweight: Shaped, scales: Shaped, zeros: Shaped | None, group_size: int, shape: tuple[int, int]
) -> None:
    """Raise InvalidArgumentError for tensors that do not make a weight of that logical shape ``(N, K)``."""
    n, k = shape
    _check_part(what, "qweight", qweight, (k // PER_WORD, n), (torch.int32,))
    _check_part(what, "scales", scales, (k // group_size, n), SCALE_DTYPES)
    if zeros is not None:
        _check_part(what, "zeros", zeros, (k // group_size, n), (scales.dtype,))
    devices = {part.device for part in (qweight, scales, zeros) if part is not None}
    if len(devices) > 1:
        raise InvalidArgumentError(f"{what}: its tensors are on several devices: {', '.join(map(str, devices))}")


def _check_part(what: str, name: str, part: Shaped, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(part.shape) != shape or part.dtype not in dtypes:
        raise InvalidArgumentError(
            f"{what}: {name} is {dtype_name(part.dtype)} of shape {tuple(part.shape)}",
            hint=f"expected {' or '.join(map(dtype_name, dtypes))} of shape {shape}",
        )


def pack(q: torch.Tensor) -> torch.Tensor:
    """Integers 0 to 15, ``[K, N]``, as int32 ``[K / 8, N]``."""
    words = torch.zeros((q.shape[0] // PER_WORD, q.shape[1]), dtype=torch.int32, device=q.device)
    for place in range(PER_WORD):
        words |= q[place::PER_WORD].to(torch.int32) << (BITS * place)
    return words


def unpack(qweight: torch.Tensor) -> torch.Tensor:
    """int32 ``[K / 8, N]`` as integers 0 to 15, int32 ``[K, N]``."""
    shifts = torch.arange(0, BITS * PER_WORD, BITS, dtype=torch.int32, device=qweight.device)
    # the shift is arithmetic: the mask also removes the sign that the highest element leaves
    return ((qweight.unsqueeze(1) >> shifts[:, None]) & LEVELS).flatten(0, 1)


def dequantized(
    qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, group_size: int, dtype: torch.dtype
) -> torch.Tensor:
    """The weight ``[K, N]``, computed in ``dtype``."""
    groups = unpack(qweight).view(-1, group_size, qweight.shape[1]).to(dtype)
    zero = SYMMETRIC_ZERO if zeros is None else zeros.to(dtype).unsqueeze(1)
    return ((groups - zero) * scales.to(dtype).unsqueeze(1)).flatten(0, 1)


def column_pieces(
    qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """The parts of a weight for a few columns at a time, about ``CHUNK`` elements each."""
    width = max(1, CHUNK // max(1, PER_WORD * qweight.shape[0]))
    words, parts = torch.split(qweight, width, 1), torch.split(scales, width, 1)
    zero_parts = [None] * len(words) if zeros is None else torch.split(zeros, width, 1)
    return list(zip(words, parts, zero_parts, strict=True))


def _quantize_rows(
    weight: torch.Tensor, group_size: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """qweight, scales and zeros of some rows; computed in float32 with the scales as they are stored."""
    groups = weight.float().reshape(weight.shape[0], -1, group_size)
    if not groups.isfinite().all():
        raise InvalidArgumentError("quantize: the weight holds NaN or infinity")
    if symmetric:
        span, levels = groups.abs().amax(-1), LEVELS // 2
        low = torch.zeros_like(span)
    else:
        low, levels = groups.amin(-1).clamp(max=0.0), LEVELS
        span = groups.amax(-1).clamp(min=0.0) - low
    scales = (span / levels).to(weight.dtype)
    # a group of zeros, or one too small for the dtype, has no scale; any will do
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    wide = scales.float()
    zeros = torch.full_like(low, SYMMETRIC_ZERO) if symmetric else (-low / wide).round_().clamp_(0, LEVELS)
    q = ((groups / wide.unsqueeze(-1)).round_() + zeros.unsqueeze(-1)).clamp_(0, LEVELS)
    return pack(q.flatten(1).T), scales.T.contiguous(), zeros.to(weight.dtype).T.contiguous()
