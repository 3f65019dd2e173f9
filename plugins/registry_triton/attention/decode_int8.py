"""attention_decode of a cache of int8: the two forms of other caches, with kernels that convert levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from registry import Config, Device, Launch, Problem
from registry.backends.triton import INTERPRETED

from .decode import SplitKvDecode, WholeDecode
from .kernels import decode_int8 as kernels

_ADDED = {"kv_dtype": ("int8",)}


class WholeInt8Decode(WholeDecode):
    """A program walks all keys of a sequence and a head; levels become float16 four at a time."""

    name = "triton.whole_int8"
    added = _ADDED

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from _int8_reasons(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch for other caches, of the kernel for int8."""
        return _of_int8(kernels.whole_decode_int8, super().launch(problem, config, device), device)


class SplitInt8Decode(SplitKvDecode):
    """A sequence's keys over several programs, and a second launch that combines their fp32 partial results."""

    name = "triton.split_kv_int8"
    added = _ADDED

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from _int8_reasons(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        """The launches for other caches, the first of the kernel for int8."""
        first, second = super().launch(problem, config, device)
        return [_of_int8(kernels.partial_decode_int8, first, device), second]


def _int8_reasons(problem: Problem) -> Iterable[str]:
    if problem.kv_dtype != "int8":
        yield f"its cache is int8, not {problem.kv_dtype}"


def _of_int8(kernel: Any, usual: Launch, device: Device) -> Launch:
    """A launch of a kernel for int8 in place of the usual one, which has another constant for conversions."""
    constants = {name: value for name, value in usual.constants.items() if name != "FLOAT8"}
    ptx = not INTERPRETED and not device.architecture.startswith("gfx")
    return Launch(kernel, usual.grid, usual.args, {**constants, "PTX": ptx}, usual.options)
