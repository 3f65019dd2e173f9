"""``alpha``, numbers and broadcasting of vector_add, as torch.add has them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ...contract import CanonicalCall
from ...problem import dtype_name
from ...tracing import refuse
from ..checks import HALVES, shape_text


def add_forms(given: dict[str, Any]) -> CanonicalCall | None:
    """``x + alpha * y`` where x or y may be a number, or a tensor that broadcasts with the other.

    The result has the dtype of ``torch.add``: a number, or a tensor without dimensions beside one that has some, does
    not widen it.
    """
    x, y = given.get("x"), given.get("y")
    numbers = _is_number(x) + _is_number(y)
    if numbers == 2 or not all(isinstance(one, torch.Tensor) or _is_number(one) for one in (x, y)):
        return _without_alpha(given)
    plain = "alpha" not in given and not numbers
    if plain and _have_one_shape(x, y):
        return None
    alpha = given.pop("alpha", 1)
    if not _is_number(alpha):
        refuse(f"vector_add: alpha={alpha!r:.80}", hint="expected a number that y is multiplied by, e.g. 2.0")
    result = _result_dtype(x, y)
    given["x"], given["y"] = _as_tensor(x, y), _scaled(_as_tensor(y, x), alpha)
    _broadcast(given)
    return CanonicalCall(given, _rounded_to(result))


def _have_one_shape(x: Any, y: Any) -> bool:
    """Whether two tensors have one shape: to ``torch.jit.trace``, too, which keeps what it finds, and warns of it."""
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return bool(x.shape == y.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(x.shape == y.shape)


def _result_dtype(x: Any, y: Any) -> torch.dtype:
    """``torch.result_type`` of floating tensors and numbers, which torch.compile cannot trace."""
    dtypes = [one.dtype for one in (x, y) if isinstance(one, torch.Tensor) and one.dim()]
    dtypes = dtypes or [one.dtype for one in (x, y) if isinstance(one, torch.Tensor)]
    return dtypes[0] if len(dtypes) == 1 else torch.promote_types(*dtypes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_alpha(given: dict[str, Any]) -> CanonicalCall | None:
    """The call without an alpha, which the schema does not know: its other arguments are wrong."""
    if "alpha" not in given:
        return None
    del given["alpha"]
    return CanonicalCall(given)


def _as_tensor(value: Any, other: Any) -> torch.Tensor:
    """A number as a tensor without dimensions, exact in its dtype: float32 beside a half that would round it."""
    if isinstance(value, torch.Tensor):
        return value
    tensor: torch.Tensor = other
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    _check_range("a number", value, dtype)
    return tensor.new_full((), float(value), dtype=dtype)


def _check_range(what: str, value: float, dtype: torch.dtype) -> None:
    """Raise InvalidArgumentError for a finite number that is infinite in a floating dtype."""
    if -math.inf < value < math.inf and dtype.is_floating_point and abs(value) > torch.finfo(dtype).max:
        refuse(f"vector_add: {what} is {value!r:.80}, too large for {dtype_name(dtype)}", hint="convert x to float64")


def _scaled(y: torch.Tensor, alpha: float) -> torch.Tensor:
    """``alpha * y``, of halves in float32, so that the sum is rounded once."""
    if alpha == 1 or not y.dtype.is_floating_point:
        return y
    wide = y.float() if y.dtype in HALVES else y
    _check_range("alpha", alpha, wide.dtype)
    return wide * float(alpha)


def _broadcast(given: dict[str, Any]) -> None:
    x, y = given["x"], given["y"]
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    if any(one != other and 1 not in (one, other) for one, other in pairs):
        refuse(
            f"vector_add: x is {shape_text(x.shape)} but y is {shape_text(y.shape)}",
            hint="sizes must be equal, or 1, from the last dimension on",
        )
    # not torch.broadcast_shapes, which is written in Python and takes 70 µs
    given["x"], given["y"] = torch.broadcast_tensors(x, y)


def _rounded_to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda total: total.to(dtype)
