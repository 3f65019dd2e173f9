"""PackedA8Linear: PackedLinear whose activations are rounded to 8 bits, W4A8 and W8A8 as the field calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch.compiler import is_dynamo_compiling

from ..api import call
from ..errors import InvalidArgumentError
from ..packed import PackedWeight, quantize
from ..problem import dtype_name
from .packed_linear import PackedLinear

ACTIVATIONS = ("int8", "float8_e4m3fn")
_BITS = (4, 8)


class PackedA8Linear(PackedLinear):
    """``x @ weight.T + bias`` by quantize_per_token, and gemm_w4a8 or gemm_w8a8 as the weight has bits.

    activations       the dtype that activations are rounded to, "int8" or "float8_e4m3fn"
    activation_scale  a buffer: None for a scale of each token's own, or one for all, float32 ``[1]``, beyond whose
                      levels activations saturate. A conversion of the dtype leaves it as it is
    Where the activations need a gradient, they are not rounded: the layer is the PackedLinear of its weight. A bias
    that alone needs one is added to the product, after its rounding.
    """

    activation_scale: torch.Tensor | None

    def __init__(
        self,
        weight: PackedWeight,
        bias: torch.Tensor | None = None,
        activations: str = "int8",
        activation_scale: torch.Tensor | None = None,
    ) -> None:
        super().__init__(weight, bias)
        if activations not in ACTIVATIONS:
            raise InvalidArgumentError(
                f"PackedA8Linear: activations={activations!r}", hint=f"expected {' or '.join(ACTIVATIONS)}"
            )
        if self.bits not in _BITS or self.codebook is not None or self.g_idx is not None:
            kind = self.codebook or ("act-order" if self.g_idx is not None else f"{self.bits} bits")
            raise InvalidArgumentError(
                f"PackedA8Linear: a weight with {kind}, expected 4 or 8 bits without codebook and act-order",
                hint="PackedLinear multiplies it with whole activations",
            )
        self.activations = activations
        self.register_buffer("activation_scale", _static(activation_scale, weight.device))
        self._rounding_op = f"gemm_w{self.bits}a8"

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        bits: int = 4,
        group_size: int = 128,
        symmetric: bool = False,
        codebook: str | None = None,
        activations: str = "int8",
        activation_scale: torch.Tensor | None = None,
    ) -> Self:
        """A linear layer with its weight rounded as by ``registry.quantize``, and its own bias parameter."""
        if not isinstance(linear, torch.nn.Linear):
            raise InvalidArgumentError(f"PackedA8Linear.from_linear: got a {type(linear).__name__}, expected nn.Linear")
        weight = quantize(linear.weight, bits, group_size, symmetric, codebook)
        return cls(weight, linear.bias, activations, activation_scale).train(linear.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``, in the dtype of ``x``, which is that of the scales.

        Under autocast activations in another dtype are converted to it.
        """
        # torch.fx.symbolic_trace gives a proxy, of which neither is known: what it records is inference
        known = isinstance(x, torch.Tensor)
        if known and torch.is_grad_enabled() and x.requires_grad:
            return super().forward(x)
        weight = self._made() if is_dynamo_compiling() else self.held
        dtype = weight.scales.dtype
        if known and x.dtype != dtype:
            if x.is_meta or not torch.is_autocast_enabled(x.device.type):
                raise InvalidArgumentError(
                    f"PackedA8Linear: x is {dtype_name(x.dtype)} but the scales of the weight are {dtype_name(dtype)}",
                    hint=f"x.to({dtype}), or layer.to({x.dtype})",
                )
            x = x.to(dtype)
        levels, scales = call("quantize_per_token", x, self.activations, 0, self.activation_scale)
        bias = self.bias
        if isinstance(bias, torch.Tensor) and torch.is_grad_enabled() and bias.requires_grad:
            # the op has no gradient, which a bias needs to learn
            return cast("torch.Tensor", call(self._rounding_op, levels, scales, weight)) + bias
        return cast("torch.Tensor", call(self._rounding_op, levels, scales, weight, bias))

    def extra_repr(self) -> str:
        kind = "dynamic" if self.activation_scale is None else "static"
        return f"{super().extra_repr()}, activations={self.activations} {kind}"

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = self.activation_scale
        super()._apply(fn, recurse)
        now = self.activation_scale
        if before is not None and now is not None and now.dtype != before.dtype:
            self.activation_scale = before.to(now.device)
        return self


def _static(scale: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """A static scale as the op takes it, ``[1]``. Raises InvalidArgumentError for anything but one positive number."""
    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor) or scale.numel() != 1 or scale.dtype != torch.float32:
        given = f"{dtype_name(scale.dtype)} of shape {tuple(scale.shape)}" if isinstance(scale, torch.Tensor) else scale
        raise InvalidArgumentError(
            f"PackedA8Linear: activation_scale is {given}",
            hint="expected float32 of shape (1,): the activations' greatest magnitude over 127 (int8) or 448 (float8)",
        )
    if not scale.is_meta and not (scale > 0).all():
        raise InvalidArgumentError(f"PackedA8Linear: activation_scale is {scale.item()}, expected a positive number")
    return scale.detach().reshape(1).to(device)
