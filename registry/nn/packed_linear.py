"""PackedLinear: torch.nn.Linear with a packed, frozen weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import torch
from torch.compiler import is_dynamo_compiling

from ..api import call, weights_changed
from ..contracts.gemm_int4 import takes
from ..errors import InvalidArgumentError
from ..packed import PackedWeight, quantize, zero_kind
from ..packed.frozen import FrozenLayer
from ..tracing import constants_of
from .exact_zeros import ExactZeros

_PARTS = ("qweight", "scales", "zeros", "g_idx")
_WITHOUT_BIAS = frozenset({"gemm_int4"})
"""Ops without a bias argument: the module adds the bias to their output."""


class PackedLinear(FrozenLayer, ExactZeros):
    """``x @ weight.T + bias`` with a PackedWeight, by the op of the weight's bits: gemm_int4, gemm_int8, gemm_nf4 ...

    Weights of 4 bits that gemm_int4 does not take (float zero points, act-order, other groups, float32) are multiplied
    by gemm_w4a16.

    The weight's tensors are buffers: qweight, scales, zeros and g_idx (None where it has none), so that ``state_dict``,
    ``.to``, ``deepcopy`` and FSDP see plain tensors. A conversion of the dtype converts the scales and integer zero
    points, but not the words and float32 zero points. The bias is a parameter ``[N]``. A state that was made by
    ``state_dict`` and kept as it is, or by ``torch.save``, says of what levels its words are, and is refused by a layer
    of others.

    Prepared forms need no ``weights_changed`` when ``.to``, ``.half``, ``.to_empty`` or ``share_memory`` convert the
    module. A converted tensor is a new buffer of another storage, of which the next call prepares anew, also where a
    form is made of it and of tensors that stay; the old form goes with the old storage. A CUDA graph that was captured
    before reads the old buffers, as of any module, and must be captured again.
    """

    zeros_beside: ClassVar[Mapping[str, str]] = {"zeros": "scales"}

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    g_idx: torch.Tensor | None
    bias: torch.nn.Parameter | None

    def __init__(self, weight: PackedWeight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(weight, PackedWeight):
            raise InvalidArgumentError(
                f"PackedLinear: weight is a {type(weight).__name__}, expected a PackedWeight",
                hint="PackedLinear.from_linear(linear, bits=4), or registry.quantize(weight)",
            )
        self.out_features, self.in_features = weight.shape
        self.bits, self.group_size, self.codebook = weight.bits, weight.group_size, weight.codebook
        self._form = self._form_text()
        for name in _PARTS:
            self.register_buffer(name, getattr(weight, name))
        self.register_parameter("bias", self._parameter(bias, weight))
        self._op = product_op(weight)
        self._known: PackedWeight | None = weight

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        bits: int = 4,
        group_size: int = 128,
        symmetric: bool = False,
        codebook: str | None = None,
    ) -> Self:
        """A linear layer with its weight rounded as by ``registry.quantize``, and its own bias parameter."""
        if not isinstance(linear, torch.nn.Linear):
            raise InvalidArgumentError(f"PackedLinear.from_linear: got a {type(linear).__name__}, expected nn.Linear")
        made = cls(quantize(linear.weight, bits, group_size, symmetric, codebook), linear.bias)
        return made.train(linear.training)

    @property
    def weight(self) -> PackedWeight:
        """The packed weight, which shares the module's tensors."""
        return self.held

    @property
    def held(self) -> PackedWeight:
        """The packed weight as it stands in the module's tensors, which is what ``forward`` multiplies by."""
        own = self._buffers
        known = self._known
        # tensors that .to, load_state_dict(assign=True) or functional_call have set are checked once
        if known is None or any(getattr(known, name) is not own[name] for name in _PARTS):
            known = self._known = self._made()
            self._op = product_op(known)
        return known

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``, in the dtype of ``x``, which is that of the scales.

        Under autocast activations in another dtype are converted to it.
        """
        # in a trace, tensors of another object are not recognised as the buffers
        weight = self._made() if is_dynamo_compiling() else self.held
        op = product_op(weight) if is_dynamo_compiling() else self._op
        dtype = weight.scales.dtype
        # torch.fx.symbolic_trace gives a proxy, of which no dtype is known
        known = isinstance(x, torch.Tensor)
        if known and x.dtype != dtype and not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(dtype)
        bias = self.bias
        if bias is None:
            return cast("torch.Tensor", call(op, x, weight))
        if op in _WITHOUT_BIAS:
            return cast("torch.Tensor", call(op, x, weight)) + bias
        return cast("torch.Tensor", call(op, x, weight, bias))

    def extra_repr(self) -> str:
        kind = self.codebook or ("symmetric" if self.zeros is None else "asymmetric")
        order = ", act-order" if self.g_idx is not None else ""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, bits={self.bits}, group_size={self.group_size}, {kind}{order}"

    def _form_text(self) -> str:
        """What ``_made`` reads beside tensors, as a text: a compiled program has up to three guards of each number."""
        return repr((self.bits, self.group_size, (self.out_features, self.in_features), self.codebook))

    def _made(self) -> PackedWeight:
        bits, group_size, shape, codebook = constants_of(self._form)
        return PackedWeight(
            self.qweight, self.scales, self.zeros, bits, group_size, shape, g_idx=self.g_idx, codebook=codebook
        )

    def _parameter(self, bias: torch.Tensor | None, weight: PackedWeight) -> torch.nn.Parameter | None:
        if bias is None:
            return None
        if not isinstance(bias, torch.Tensor) or tuple(bias.shape) != (self.out_features,):
            given = tuple(bias.shape) if isinstance(bias, torch.Tensor) else type(bias).__name__
            raise InvalidArgumentError(f"PackedLinear: bias is {given}", hint=f"expected shape ({self.out_features},)")
        if (bias.dtype, bias.device) != (weight.dtype, weight.device):
            raise InvalidArgumentError(
                f"PackedLinear: bias is {bias.dtype} on {bias.device}, weight {weight.dtype} on {weight.device}",
                hint="convert one of them with .to",
            )
        return bias if isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias.detach())

    def _levels(self) -> str:
        """The name of the levels that words stand for: ``int4``, ``nf4`` and so on."""
        return self.codebook or f"int{self.bits}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # words of equal bits look alike; torch's metadata goes with a state through torch.save, if not into safetensors
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["levels"] = self._levels()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        levels = rest[0].get("levels", self._levels())
        if levels != self._levels():
            errors.append(f"{prefix}qweight has words of {levels}, expected {self._levels()}")
            return
        given = {name: state_dict.get(prefix + name) for name in _PARTS}
        # torch would convert these silently
        for name in ("qweight", "g_idx"):
            if isinstance(value := given[name], torch.Tensor) and value.dtype != torch.int32:
                errors.append(f"{prefix}{name} is {value.dtype}, expected torch.int32")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._known = None
        if errors:
            return
        try:
            weight = self.held
        except InvalidArgumentError as fault:
            errors.append(f"{prefix.rstrip('.') or 'PackedLinear'}: {fault}")
            return
        # a captured CUDA graph reads prepared forms, and perhaps no further call makes them again
        weights_changed(weight)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # files of the time before there was this text have the numbers alone
        self._form = self._form_text()


def product_op(weight: PackedWeight) -> str:
    """The name of the op that multiplies activations by a weight."""
    if weight.bits != 4 or weight.codebook is not None:
        return f"gemm_{weight.codebook or f'int{weight.bits}'}"
    return "gemm_int4" if weight.g_idx is None and taken_by_gemm_int4(weight) else "gemm_w4a16"


def taken_by_gemm_int4(weight: PackedWeight) -> bool:
    """Whether gemm_int4 takes a weight of 4 bits but for its act-order: dtype, groups and zero points."""
    known = takes(weight.scales.dtype, weight.shape[1], weight.group_size)
    return known and zero_kind(weight.zeros) != "float"
