"""kv_cache_append to a cache of int8."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem

from .kernels import kv_cache_append_int8 as kernels
from .kv_cache_append import BlockKvCacheAppend

_ADDED = {"kv_dtype": ("int8",)}


class BlockInt8Append(BlockKvCacheAppend):
    """One program a block of tokens and heads, which divides by the scales and rounds."""

    name = "triton.block_int8"
    added = _ADDED

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.kv_dtype != "int8":
            yield f"its cache is int8, not {problem.kv_dtype}"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch for other caches, of the kernel for int8."""
        usual = super().launch(problem, config, device)
        return Launch(kernels.kv_cache_append_int8, usual.grid, usual.args, usual.constants, usual.options)
