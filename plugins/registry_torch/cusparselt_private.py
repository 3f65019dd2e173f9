"""torch's private operators of cuSPARSELt. Where a version lacks them, what needs them is unsupported, with a reason.

Its public class for 2:4 sparse weights, SparseSemiStructuredTensor, chooses no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_compress: Callable[[torch.Tensor], torch.Tensor] | None = getattr(torch, "_cslt_compress", None)
_multiply: Callable[..., torch.Tensor] | None = getattr(torch, "_cslt_sparse_mm", None)


def missing() -> str:
    """Why cuSPARSELt cannot run here; "" if it can."""
    if _compress is None or _multiply is None:
        return "this torch has no operators of cuSPARSELt, _cslt_compress and _cslt_sparse_mm"
    if not torch.backends.cusparselt.is_available():
        return "this torch was built without cuSPARSELt"
    return ""


def compressed(weight: torch.Tensor) -> torch.Tensor:
    """A half-precision weight ``[n, k]`` with two zeros in each four of a row, as the library reads it.

    A vector of 9 / 16 of the elements: half of them, and 2 bits for each that is kept.
    """
    if weight.is_meta:
        return weight.new_empty(weight.numel() * 9 // 16)
    assert _compress is not None
    return _compress(weight).view(-1)


def product(
    weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, algorithm: int, split_k: int
) -> torch.Tensor:
    """``x @ W.T + bias`` of a ``compressed`` weight; ``[m, k]`` to ``[m, n]``. Raises RuntimeError for an algorithm
    that the library does not have for these sizes, before anything is enqueued."""
    assert _multiply is not None
    return _multiply(weight, x.t(), bias=bias, transpose_result=True, alg_id=algorithm, split_k=split_k)
