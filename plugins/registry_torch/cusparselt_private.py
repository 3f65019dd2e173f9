"""torch's private operators of cuSPARSELt. Where a version lacks them, what needs them is unsupported, with a reason.

Its public class for 2:4 sparse weights, SparseSemiStructuredTensor, chooses no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_compress: Callable[[torch.Tensor], torch.Tensor] | None = getattr(torch, "_cslt_compress", None)
_multiply: Callable[..., torch.Tensor] | None = getattr(torch, "_cslt_sparse_mm", None)
_METADATA_ROWS = 128
"""Rows to a multiple of which the library pads what tells the places of the kept elements."""


def missing() -> str:
    """Why cuSPARSELt cannot run here; "" if it can."""
    if _compress is None or _multiply is None:
        return "this torch has no operators of cuSPARSELt, _cslt_compress and _cslt_sparse_mm"
    if not torch.backends.cusparselt.is_available():
        return "this torch was built without cuSPARSELt"
    return ""


def compressed(weight: torch.Tensor) -> torch.Tensor:
    """A half-precision weight ``[n, k]`` with two zeros in each four of a row, as the library reads it: ``[n, s]``.

    It holds half of the elements, and 2 bits for each element that is kept, of rows padded to a multiple of 128; so s
    is ``k * 9 / 16`` where n is such a multiple. Versions of torch that return a vector get it in this form too.
    """
    n, k = weight.shape
    if weight.is_meta:
        size = weight.element_size()
        padded = n + -n % _METADATA_ROWS
        return weight.new_empty(n, -(-(n * k // 2 * size + padded * k // 8) // (n * size)))
    assert _compress is not None
    return _compress(weight).view(n, -1)


def product(
    weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, algorithm: int, split_k: int
) -> torch.Tensor:
    """``x @ W.T + bias`` of a ``compressed`` weight; ``[m, k]`` to ``[m, n]``. Raises RuntimeError for an algorithm
    that the library does not have for these sizes, before anything is enqueued."""
    assert _multiply is not None
    return _multiply(weight, x.t(), bias=bias, transpose_result=True, alg_id=algorithm, split_k=split_k)
