"""Rotations as products of complex numbers in float64, and tables of angles."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def angles(rows: int, rotary_dim: int) -> Tensor:
    """Angles [rows, rotary_dim / 2] as Llama has them, in float64."""
    frequencies = 10_000.0 ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    return torch.outer(torch.arange(rows).double(), frequencies)


def table(rows: int, rotary_dim: int, dtype: torch.dtype) -> Tensor:
    turned = angles(rows, rotary_dim)
    return torch.cat((turned.cos(), turned.sin()), -1).to(dtype)


def rotated(positions: Tensor, x: Tensor, cache: Tensor, is_neox: bool) -> Tensor:
    """``x`` [..., heads, head_dim] rotated as complex numbers, in float64."""
    half = cache.shape[1] // 2
    turned = torch.complex(cache[:, :half].double(), cache[:, half:].double())[positions.long()].unsqueeze(-2)
    part, rest = x[..., : 2 * half].double(), x[..., 2 * half :].double()
    if is_neox:
        product = torch.complex(part[..., :half], part[..., half:]) * turned
        return torch.cat((product.real, product.imag, rest), -1)
    product = torch.view_as_complex(part.unflatten(-1, (half, 2)).contiguous()) * turned
    return torch.cat((torch.view_as_real(product).flatten(-2), rest), -1)


def close(found: Tensor, right: Tensor) -> None:
    limit = 4 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), right, rtol=limit, atol=8 * limit)
