"""Views of a matrix as code sees it that misreads strides of expanded tensors: each is right for other layouts."""

from __future__ import annotations

import torch


def leading_dimension(x: torch.Tensor) -> torch.Tensor:
    """Takes dense rows to be as far apart as they are long at least, as libraries for matrices do."""
    return x if x.stride(1) != 1 else x.as_strided(x.shape, (max(x.stride(0), x.shape[1]), 1))


def dense_columns(x: torch.Tensor) -> torch.Tensor:
    """Takes a stride of 0 between elements for none that was given."""
    return x.as_strided(x.shape, (x.stride(0), x.stride(1) or 1))
