"""ScaledLinear: torch.nn.Linear with a weight and activations in float8 or int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

import torch

from ..api import call
from ..errors import InvalidArgumentError
from ..packed.frozen import FrozenLayer, FrozenWeight
from ..problem import dtype_name
from .exact_buffers import ExactBuffers

DTYPES = (torch.float8_e4m3fn, torch.int8)
OUT_DTYPES = {dtype: dtype_name(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)}


@dataclass(frozen=True, eq=False)
class ScaledWeight(FrozenWeight):
    """The weight ``levels * scales`` of a ScaledLinear, which shares the module's tensors."""

    levels: torch.Tensor
    scales: torch.Tensor

    @property
    def device(self) -> torch.device:
        """The device of the module's tensors."""
        return self.levels.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scales, in which the product is summed, and adapters beside the layer learn."""
        return self.scales.dtype


class ScaledLinear(FrozenLayer, ExactBuffers):
    """``x @ weight.T + bias`` by quantize_per_token and scaled_mm: a scale for each output and each token.

    levels  the weight over its scales, float8_e4m3fn or int8 ``[N, K]``, a buffer; frozen
    scales  float32 ``[N, 1]``, a buffer
    A conversion of the dtype leaves both as they are. Where the activations need a gradient, they are not rounded: the
    product is torch's with the dequantised weight. A bias that alone needs one is added to the product, after its
    rounding.
    """

    levels: torch.Tensor
    scales: torch.Tensor
    bias: torch.nn.Parameter | None

    def __init__(self, levels: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        if levels.dim() != 2 or levels.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"ScaledLinear: levels is {dtype_name(levels.dtype)} of shape {tuple(levels.shape)}",
                hint=f"expected {' or '.join(map(dtype_name, DTYPES))} of shape [N, K]",
            )
        self.out_features, self.in_features = levels.shape
        if tuple(scales.shape) != (self.out_features, 1) or scales.dtype != torch.float32:
            raise InvalidArgumentError(
                f"ScaledLinear: scales is {dtype_name(scales.dtype)} of shape {tuple(scales.shape)}",
                hint=f"expected float32 of shape {(self.out_features, 1)}",
            )
        self.register_buffer("levels", levels.contiguous())
        self.register_buffer("scales", scales.contiguous())
        given = bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias.detach())
        self.register_parameter("bias", given)
        self._dtype = dtype_name(levels.dtype)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, dtype: str = "float8_e4m3fn") -> Self:
        """A linear layer with each row of its weight rounded as quantize_per_token rounds one, and its own bias."""
        if not isinstance(linear, torch.nn.Linear):
            raise InvalidArgumentError(f"ScaledLinear.from_linear: got a {type(linear).__name__}, expected nn.Linear")
        return cls(*rounded_rows(linear.weight, dtype), linear.bias).train(linear.training)

    @property
    def weight(self) -> ScaledWeight:
        """The weight's parts; PEFT puts adapters on its device."""
        return ScaledWeight(self.levels, self.scales)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight ``[N, K]``, computed in float32 and rounded once."""
        return (self.levels.float() * self.scales).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``, in the dtype of ``x``."""
        return _product(x, self.levels, self.scales, self.bias, self._dtype)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, {self._dtype}"


@torch.fx.wrap  # type: ignore[untyped-decorator, unused-ignore]
def _product(
    x: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, rounded_to: str
) -> torch.Tensor:
    """``x @ (levels * scales).T + bias`` with ``x`` rounded; one call of torch.fx's graph, which knows no dtype."""
    learning = torch.is_grad_enabled()
    if learning and x.requires_grad:
        return torch.nn.functional.linear(x, (levels.float() * scales).to(x.dtype), bias)
    dtype = product_dtype(x)
    added = bias if bias is None or bias.dtype == dtype else bias.to(dtype)
    rounded, of_rows = call("quantize_per_token", x, rounded_to)
    # the op has no gradient, which a bias needs to learn
    beside = added if added is not None and learning and added.requires_grad else None
    bias_of_op = added if beside is None else None
    y = cast("torch.Tensor", call("scaled_mm", rounded, levels, of_rows, scales, bias_of_op, OUT_DTYPES[dtype]))
    return y if beside is None else y + beside


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of a product of ``x``: its own, of float32 under autocast that of the region."""
    if x.dtype == torch.float32 and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def rounded_rows(weight: torch.Tensor, dtype: str, owner: str = "ScaledLinear") -> tuple[torch.Tensor, torch.Tensor]:
    """Levels ``[N, K]`` and scales ``[N, 1]`` of a weight of a module ``owner``.

    Raises InvalidArgumentError for NaN and infinity.
    """
    if dtype not in map(dtype_name, DTYPES):
        raise InvalidArgumentError(f"{owner}: dtype={dtype!r}", hint=f"expected {', '.join(map(dtype_name, DTYPES))}")
    if not weight.isfinite().all():
        raise InvalidArgumentError(f"{owner}: the weight holds NaN or infinity")
    levels, scales = call("quantize_per_token", weight.detach(), dtype)
    return levels, scales
