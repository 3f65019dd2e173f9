"""Checks of 2:4 sparse weights: shapes and dtypes of their parts, and of dense weights to convert."""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError
from ..packed.checks import Shaped, check_tensor
from ..problem import dtype_name
from .layout import meta_words

VALUE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_parts(what: str, values: Shaped, meta: Shaped) -> None:
    """Raise InvalidArgumentError for tensors that do not make a 2:4 sparse weight."""
    shape = tuple(values.shape)
    if values.dtype not in VALUE_DTYPES or len(shape) != 2 or 0 in shape or shape[1] % 2:
        raise InvalidArgumentError(
            f"{what}: values is {dtype_name(values.dtype)} of shape {shape}",
            hint=f"expected {_names()} of shape (N, K / 2), K a multiple of 4",
        )
    wanted = (shape[0], meta_words(2 * shape[1]))
    if meta.dtype != torch.int32 or tuple(meta.shape) != wanted:
        raise InvalidArgumentError(
            f"{what}: meta is {dtype_name(meta.dtype)} of shape {tuple(meta.shape)}",
            hint=f"expected int32 of shape {wanted}: 4 bits for each four elements along K={2 * shape[1]}",
        )
    if values.device != meta.device:
        raise InvalidArgumentError(
            f"{what}: its tensors are on several devices: {values.device}, {meta.device}",
            hint="move them to one: .to(device)",
        )


def check_dense(what: str, weight: object) -> torch.Tensor:
    """``weight``. Raises InvalidArgumentError unless it can become 2:4 sparse, e.g. K is a multiple of 4."""
    check_tensor(f"{what}: weight", weight)
    assert isinstance(weight, torch.Tensor)
    if weight.device.type == "meta":
        raise InvalidArgumentError(f"{what}: weight is on meta, so it has no values", hint="load the weight first")
    if weight.dim() != 2 or weight.numel() == 0 or weight.shape[1] % 4:
        raise InvalidArgumentError(
            f"{what}: weight has shape {tuple(weight.shape)}",
            hint="expected [N, K] as nn.Linear, K a multiple of 4; pad K and the activations with zeros",
        )
    if weight.dtype not in VALUE_DTYPES:
        raise InvalidArgumentError(f"{what}: weight is {dtype_name(weight.dtype)}", hint=f"expected {_names()}")
    return weight.detach()


def _names() -> str:
    return " or ".join(map(dtype_name, VALUE_DTYPES))
