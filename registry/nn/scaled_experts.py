"""ScaledExperts: the weights of the experts of one layer in float8 or int8, stacked, with a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import InvalidArgumentError
from ..packed import PackedExperts
from ..problem import dtype_name
from .scaled_linear import DTYPES, rounded_rows


@dataclass(frozen=True, eq=False)
class ScaledExperts:
    """One weight ``levels * scales`` per expert.

    levels  float8_e4m3fn or int8 ``[experts, N, K]``
    scales  float32 ``[experts, N, 1]``
    """

    levels: torch.Tensor
    scales: torch.Tensor

    def __post_init__(self) -> None:
        levels, scales = self.levels, self.scales
        if levels.dim() != 3 or levels.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"ScaledExperts: levels is {dtype_name(levels.dtype)} of shape {tuple(levels.shape)}",
                hint=f"expected {' or '.join(map(dtype_name, DTYPES))} of shape [experts, N, K]",
            )
        expected = (*levels.shape[:2], 1)
        if tuple(scales.shape) != expected or scales.dtype != torch.float32:
            raise InvalidArgumentError(
                f"ScaledExperts: scales is {dtype_name(scales.dtype)} of shape {tuple(scales.shape)}",
                hint=f"expected float32 of shape {expected}",
            )

    @classmethod
    def rounded(cls, weights: torch.Tensor, dtype: str = "float8_e4m3fn") -> ScaledExperts:
        """The weights ``[experts, N, K]``, each row rounded as quantize_per_token rounds one.

        Raises InvalidArgumentError for NaN and infinity.
        """
        # one after the other: plain torch takes several times the memory of what it rounds at once
        levels, scales = zip(*(rounded_rows(weight, dtype, "ScaledExperts") for weight in weights), strict=True)
        return cls(torch.stack(levels), torch.stack(scales))

    @property
    def dtype(self) -> str:
        """The name of the levels' dtype, which activations are rounded to."""
        return dtype_name(self.levels.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """``(N, K)`` of each weight."""
        _, n, k = self.levels.shape
        return n, k

    def __len__(self) -> int:
        """The number of experts."""
        return self.levels.shape[0]

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights ``[experts, N, K]``, computed in float32 and rounded once."""
        return (self.levels.float() * self.scales).to(dtype)


ExpertWeights = PackedExperts | ScaledExperts
