"""PackedWeight: a linear layer's weight in 1, 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError
from ..problem import dtype_name
from .checks import (
    check_codebook,
    check_format,
    check_integers,
    check_order,
    check_parts,
    check_tensor,
    refuse_nested,
    zero_kind,
)
from .formats.awq import awq_parts
from .formats.bitsandbytes import bitsandbytes_parts
from .formats.compressed_tensors import compressed_tensors_parts
from .formats.gptq import gptq_parts
from .formats.hqq import hqq_parts
from .formats.torchao import torchao_parts
from .frozen import FrozenWeight
from .layout import LAYOUT, column_pieces, dequantized, layout_name

VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class PackedWeight(FrozenWeight):
    """A linear layer's weight in a few bits; ``shape`` is the logical one, ``(N, K)`` as ``torch.nn.Linear`` holds it.

    qweight     int32 ``[ceil(K / per_word), N]``, see ``layout``
    scales      ``[ceil(K / group_size), N]``, float16, bfloat16 or float32: the activations' dtype
    zeros       None: symmetric, the zero point is ``2**(bits - 1)``, and 0.5 for one bit;
                in the scales' dtype: integers, which are exact to 256;
                in float32 beside scales in half precision: any numbers, which rounding would change by 3 to 6e-3
    bits        1, 2, 4 or 8
    group_size  16, 32, 64, 128, 256, or K (one scale a column); the last group of K may be shorter
    layout      "gptq", "gptq_act_order" or the codebook's name. It follows from the other parts; an op that gets it
                knows whether there are a ``g_idx`` and a codebook
    g_idx       None: element ``k`` is in group ``k // group_size``; else int32 ``[K]``, its group (GPTQ's act-order)
    codebook    None, or "nf4": the weight is ``codebook[q] * scale``, 4 bits without zero points

    A weight is ``(q - zero) * scale``.
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_size: int
    shape: tuple[int, int]
    layout: str = LAYOUT
    version: int = VERSION
    g_idx: torch.Tensor | None = None
    codebook: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _logical_shape(self.shape))
        for name in _TENSORS:
            if name not in _OPTIONAL or getattr(self, name) is not None:
                check_tensor(f"PackedWeight: {name}", getattr(self, name))
        check_integers("PackedWeight", bits=self.bits, group_size=self.group_size, version=self.version)
        check_codebook("PackedWeight", self.codebook)
        if self.version != VERSION:
            raise InvalidArgumentError(
                f"PackedWeight: version {self.version!r}, this is version {VERSION}", hint="quantize the weight again"
            )
        if self.layout == LAYOUT:
            object.__setattr__(self, "layout", layout_name(self.codebook, self.g_idx is not None))
        check_format("PackedWeight", self.bits, self.group_size, self.shape[1], self.layout)
        parts = (self.qweight, self.scales, self.zeros, self.group_size, self.shape)
        check_parts("PackedWeight", *parts, bits=self.bits, layout=self.layout, g_idx=self.g_idx)
        if self.layout != layout_name(self.codebook, self.g_idx is not None):
            raise InvalidArgumentError(
                f"PackedWeight: layout {self.layout!r} beside codebook {self.codebook!r}",
                hint="leave layout out: it follows from codebook and g_idx",
            )
        if self.g_idx is not None:
            check_order("PackedWeight", self.g_idx, self.group_size)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scales, which activations must have."""
        return self.scales.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weight's tensors."""
        return self.qweight.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The weight's tensors, in order, without missing ones."""
        return tuple(getattr(self, name) for name in _given(self))

    def dequantize(self) -> torch.Tensor:
        """The weight ``[N, K]`` in the scales' dtype, computed in float32 and rounded once."""
        how: dict[str, Any] = {"bits": self.bits, "k": self.shape[1], "g_idx": self.g_idx, "codebook": self.codebook}
        pieces = [
            dequantized(qweight, scales, zeros, self.group_size, torch.float32, **how).to(self.dtype).T
            for qweight, scales, zeros in column_pieces(self.qweight, self.scales, self.zeros, self.bits)
        ]
        return torch.cat(pieces).contiguous()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PackedWeight:
        """A copy of the weight on another device, or with scales in another dtype.

        Zero points are converted with the scales if they are integers; others stay float32.
        """
        return replace(
            self,
            qweight=self.qweight.to(device=device),
            scales=self.scales.to(device=device, dtype=dtype),
            zeros=None if self.zeros is None else _converted(self.zeros, self.dtype, dtype).to(device=device),
            g_idx=None if self.g_idx is None else self.g_idx.to(device=device),
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
        missing = [name for name in _FIELDS if name not in state and name not in _OPTIONAL]
        unknown = [name for name in state if name not in _FIELDS]
        if missing or unknown:
            raise InvalidArgumentError(
                f"PackedWeight: its state lacks {', '.join(missing) or 'nothing'}"
                f" and has unknown entries {', '.join(unknown) or '(none)'}",
                hint=f"expected {', '.join(_FIELDS)}; {', '.join(_OPTIONAL)} may be left out",
            )
        return cls(**{**dict.fromkeys(_OPTIONAL), **state})

    @classmethod
    def from_gptq(
        cls,
        qweight: torch.Tensor,
        qzeros: torch.Tensor | None,
        scales: torch.Tensor,
        g_idx: torch.Tensor | None = None,
        *,
        bits: int = 4,
        group_size: int = 128,
        checkpoint_format: str = "gptq",
    ) -> PackedWeight:
        """A GPTQ checkpoint's tensors, with or without act-order (``g_idx``).

        checkpoint_format  "gptq", which stores zero points less 1, or "gptq_v2": a wrong one is 20 to 50% of error
        group_size         -1 is one scale a column
        """
        return cls(**gptq_parts(qweight, qzeros, scales, g_idx, bits, group_size, checkpoint_format))

    @classmethod
    def from_awq(
        cls,
        qweight: torch.Tensor,
        qzeros: torch.Tensor | None,
        scales: torch.Tensor,
        *,
        bits: int = 4,
        group_size: int = 128,
        version: str = "gemm",
    ) -> PackedWeight:
        """An AWQ checkpoint's tensors.

        version  AutoAWQ's: "gemm", whose ``qweight`` is ``[K, N / 8]``, or "gemv", whose is ``[N, K / 8]``
        """
        return cls(**awq_parts(qweight, qzeros, scales, bits, group_size, version))

    @classmethod
    def from_compressed_tensors(
        cls, state: Mapping[str, torch.Tensor], *, bits: int = 4, group_size: int | None = None
    ) -> PackedWeight:
        """A module's tensors by their names in a compressed-tensors checkpoint.

        state       ``weight_packed`` and ``weight_shape`` (pack-quantized), or ``weight`` in int8 (int-quantized);
                    ``weight_scale``, and where the checkpoint has them ``weight_zero_point`` and ``weight_g_idx``
        bits        the scheme's ``num_bits``
        group_size  the scheme's; None: what the scales' shape says
        """
        return cls(**compressed_tensors_parts(state, bits, group_size))

    @classmethod
    def from_torchao(cls, tensor: Any) -> PackedWeight:
        """A weight that torchao quantised; its quantisation of activations is ignored.

        tensor  an Int4Tensor, Int4TilePackedTo4dTensor, Int8Tensor, IntxUnpackedToInt8Tensor or NF4Tensor; its scales
                keep their dtype, which may be float32
        """
        return cls(**torchao_parts(tensor))

    @classmethod
    def from_hqq(cls, packed: torch.Tensor, meta: Mapping[str, Any]) -> PackedWeight:
        """HQQ's ``W_q`` and ``meta``, grouped along K (axis=1). Elements of 3 bits are held in 4."""
        return cls(**hqq_parts(packed, meta))

    @classmethod
    def from_bitsandbytes(cls, packed: torch.Tensor, quant_state: Any) -> PackedWeight:
        """bitsandbytes' nf4: ``Params4bit.data`` and ``quant_state``; scales become float32.

        Also in the order that a layer's first product on a CPU with AVX-512 brings its weight into.
        """
        return cls(**bitsandbytes_parts(packed, quant_state))

    def __repr__(self) -> str:
        kinds = {"none": "symmetric", "integer": "asymmetric", "float": "float zero points"}
        kind = self.codebook or kinds[zero_kind(self.zeros)]
        kind += "" if self.g_idx is None else ", act-order"
        return (
            f"PackedWeight({self.shape[0]}x{self.shape[1]}, bits={self.bits}, group_size={self.group_size}, {kind}, "
            f"{dtype_name(self.dtype)}, {self.device}, {self.nbytes} bytes)"
        )


_FIELDS = ("qweight", "scales", "zeros", "bits", "group_size", "shape", "layout", "version", "g_idx", "codebook")
_TENSORS = ("qweight", "scales", "zeros", "g_idx")
_OPTIONAL = ("zeros", "g_idx", "codebook")
_NUMBERS = tuple(name for name in _FIELDS if name not in _TENSORS)


def _given(weight: PackedWeight) -> list[str]:
    return [name for name in _TENSORS if getattr(weight, name) is not None]


def _converted(zeros: torch.Tensor, scales: torch.dtype, dtype: torch.dtype | None) -> torch.Tensor:
    """Zero points for scales in ``dtype``: converted, too, unless they are float32 and rounding would change them."""
    if dtype is None or zeros.dtype != scales:
        return zeros
    converted = zeros.to(dtype)
    if zeros.dtype != torch.float32 or zeros.device.type == "meta":
        return converted
    return converted if torch.equal(converted.float(), zeros) else zeros


def _flatten(weight: PackedWeight) -> tuple[list[Any], list[Any]]:
    """The weight's tensors, and their names and the numbers as JSON would restore them."""
    numbers = [list(weight.shape) if name == "shape" else getattr(weight, name) for name in _NUMBERS]
    return list(weight.tensors), [_given(weight), *numbers]


def _flatten_with_keys(weight: PackedWeight) -> tuple[list[tuple[Any, Any]], list[Any]]:
    tensors, context = _flatten(weight)
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in zip(context[0], tensors, strict=True)], context


def _unflatten(tensors: Iterable[Any], context: Sequence[Any]) -> PackedWeight:
    # unchecked: a map over a tree may put anything in the tensors' places, at least temporarily
    weight = object.__new__(PackedWeight)
    given, *numbers = context
    parts: dict[str, Any] = dict.fromkeys(_TENSORS) | dict(zip(given, tensors, strict=True))
    for name, value in parts.items():
        refuse_nested(f"PackedWeight: {name}", value)
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


def _logical_shape(shape: object) -> tuple[int, int]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else ()
    if len(sizes) != 2 or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise InvalidArgumentError(f"PackedWeight: shape {shape!r}", hint="expected two positive integers, (N, K)")
    return sizes
