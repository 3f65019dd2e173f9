"""A stand-in for QuACK, which needs a GPU: its functions with their signatures, by torch and as careless."""

from __future__ import annotations

import torch


def rmsnorm_fwd(  # noqa: PLR0917
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    store_rstd: bool = False,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    total = x.float() if residual is None else x.float() + residual.float()
    inverse = torch.rsqrt(total.square().mean(-1) + eps)
    out = total * inverse[:, None] * (1.0 if weight is None else weight.float() + weight_offset)
    left = x if residual is None else total.to(residual.dtype)
    return out.to(x.dtype), left, inverse if store_rstd else None


def rmsnorm_bwd(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    dout: torch.Tensor,
    rstd: torch.Tensor,
    dresidual_out: torch.Tensor | None = None,
    has_bias: bool = False,
    has_residual: bool = False,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
    assert weight is not None
    unit = x.float() * rstd[:, None]
    gradient = dout.float() * (weight.float() + weight_offset)
    of_x = (gradient - unit * (unit * gradient).mean(-1, keepdim=True)) * rstd[:, None]
    return of_x.to(x.dtype), (dout.float() * unit).sum(0).to(weight.dtype), None, None


def layernorm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float = 1e-6,
    return_rstd: bool = False,
    return_mean: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert weight.dtype == torch.float32
    assert bias is None or bias.dtype == torch.float32
    mean = x.float().mean(-1)
    centred = x.float() - mean[:, None]
    inverse = torch.rsqrt(centred.square().mean(-1) + eps)
    out = centred * inverse[:, None] * weight
    out = (out if bias is None else out + bias).to(x.dtype)
    return (out, inverse, mean) if return_rstd and return_mean else out


def layernorm_bwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    dout: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor,
    has_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    unit = (x.float() - mean[:, None]) * rstd[:, None]
    gradient = dout.float() * weight.float()
    common = gradient.mean(-1, keepdim=True) + unit * (gradient * unit).mean(-1, keepdim=True)
    of_x = ((gradient - common) * rstd[:, None]).to(x.dtype)
    of_bias = dout.float().sum(0).to(weight.dtype) if has_bias else None
    return of_x, (dout.float() * unit).sum(0).to(weight.dtype), of_bias


def cross_entropy_fwd(
    x: torch.Tensor,
    target: torch.Tensor,
    target_logit: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    return_lse: bool = False,
    return_dx: bool = False,
    inplace_backward: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    assert return_lse
    most = x.float().amax(-1)
    lse = most + (x.float() - most[:, None]).exp().sum(-1).log()
    # a target outside of the vocabulary is an error here, where the kernel reads any memory
    loss = lse - x.float().gather(1, target[:, None])[:, 0]
    loss = loss if weight is None else loss * weight.float()[target]
    return loss.masked_fill(target == ignore_index, 0.0), lse


def cross_entropy_bwd(
    x: torch.Tensor,
    target: torch.Tensor,
    dloss: torch.Tensor,
    lse: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    inplace_backward: bool = False,
) -> torch.Tensor:
    found = (x.float() - lse[:, None]).exp()
    found.scatter_add_(1, target[:, None], -torch.ones_like(lse)[:, None])
    slopes = dloss if weight is None else dloss * weight.float()[target]
    # NaN times 0 is NaN, as in the kernel
    return (found * slopes.masked_fill(target == ignore_index, 0.0)[:, None]).to(x.dtype)
