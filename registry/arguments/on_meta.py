"""Tensors of the meta device without torch's compiler, which many operators of that device import: two seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
_NUMBERS = (torch.randn, torch.rand)
_SIZES_FOLLOW = frozenset(
    re.findall(
        r"\w+",
        """
        add sub mul div true_divide floor_divide remainder pow maximum minimum where eq ne lt le gt ge logical_and
        logical_or logical_not abs neg sign round floor ceil exp log sqrt rsqrt square sigmoid tanh relu clamp clamp_min
        clamp_max nan_to_num and or xor invert lshift rshift floordiv truediv mod radd rsub rmul rtruediv rpow rfloordiv
        rmod iadd isub imul itruediv ior softmax sum mean amax amin cumsum zeros_like ones_like empty_like
        """,
    )
)
"""Names of functions, without underscores at their ends, whose result has sizes of their tensors and no others."""


class OnMeta(TorchFunctionMode):
    """A mode in which all tensors are made on the meta device, and random ones without their generator.

    Random functions, lookups and those of ``_SIZES_FOLLOW`` are answered here, since torch's own answers for meta
    tensors import its compiler. All others are torch's.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        if given.get("device") is not None:
            given["device"] = META
        if func in _NUMBERS:
            return torch.empty(*args, **given)
        if func is torch.randperm and "out" not in given:
            return torch.empty(args[0], **{"dtype": torch.int64, "device": META, **given})
        if func is torch.randint and "out" not in given:
            return _integers(args, given)
        if func is torch.Tensor.__getitem__ and _is_lookup(*args):
            return torch.empty((*args[1].shape, *args[0].shape[1:]), dtype=args[0].dtype, device=META)
        if _is_followed(func, args, given):
            return _follow(partial(func, **given), args)
        return func(*args, **given)


def _integers(args: tuple[Any, ...], given: Mapping[str, Any]) -> torch.Tensor:
    """``torch.randint(low=0, high, size, *, dtype=torch.int64)`` on the meta device, uninitialised."""
    size = given["size"] if "size" in given else args[-1]
    return torch.empty(size, dtype=given.get("dtype") or torch.int64, device=META)


def _is_lookup(table: torch.Tensor, index: Any) -> bool:
    """True for ``table[index]`` with a tensor of integers, both on the meta device."""
    on_meta = isinstance(index, torch.Tensor) and index.is_meta and table.is_meta
    return on_meta and index.dtype not in (torch.bool, torch.uint8)


def _is_followed(func: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """True for a function of ``_SIZES_FOLLOW`` with row-major tensors of the meta device as positional arguments."""
    if func.__name__.strip("_") not in _SIZES_FOLLOW:
        return False
    named = any(isinstance(one, torch.Tensor) for one in given.values())
    tensors = _tensors(args)
    with torch._C.DisableTorchFunction():
        return bool(tensors) and not named and all(one.is_meta and one.is_contiguous() for one in tensors)


def _follow(func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """``func(*args)`` from a call with small CPU tensors: of 2, 3, ... elements for each size that the tensors have.

    It is torch's own answer, or error, if that call fails or returns anything but a tensor.
    """
    with torch._C.DisableTorchFunction():  # each attribute would pass through the mode of the device
        sizes = sorted({size for one in _tensors(args) for size in one.shape if size > 1})
        small = {0: 0, 1: 1, **{size: number for number, size in enumerate(sizes, 2)}}
        given = [
            torch.ones([small[size] for size in one.shape], dtype=one.dtype, device="cpu")
            if isinstance(one, torch.Tensor)
            else one
            for one in args
        ]
        try:
            result = func(*given)
        except Exception:  # a CPU may lack what other devices have
            result = None
    if not isinstance(result, torch.Tensor):
        return func(*args)
    if result is given[0]:  # in place
        return args[0]
    large = {number: size for size, number in small.items()}
    return torch.empty([large[number] for number in result.shape], dtype=result.dtype, device=META)


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [one for one in args if isinstance(one, torch.Tensor)]
