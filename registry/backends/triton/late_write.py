"""A kernel that lets the next launch begin at once, and writes to memory later."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from .implementation import own_cache

_BLOCK = 4096
_PROGRAMS = 64
"""Few, so that blocks of the next kernel find room beside them."""


@triton.jit(do_not_specialize=["count", "delay_ns"])
def write_rows(table, count, delay_ns, BLOCK: tl.constexpr):
    """Copy bytes by the rows of ``table`` [count, 3] int64, addresses of target and source and their bytes.

    The programs let the next kernel's start, then wait ``delay_ns`` of the GPU's clock.
    """
    tl.extra.cuda.gdc_launch_dependents()
    began = tl.extra.cuda.globaltimer()
    now = began
    while now - began < delay_ns:
        now = tl.extra.cuda.globaltimer()
    for row in range(count):
        target = tl.load(table + 3 * row).to(tl.pointer_type(tl.uint8))
        source = tl.load(table + 3 * row + 1).to(tl.pointer_type(tl.uint8))
        size = tl.load(table + 3 * row + 2)
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, size, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(target + place, tl.load(source + place, mask=place < size), mask=place < size)


def write_late(table: torch.Tensor, count: int, delay_ns: int) -> None:
    """Launch ``write_rows`` on the current stream. ``table``: int64 on the GPU, [count, 3], of memory that lives on."""
    with torch.cuda.device(table.device):
        _compiled(table.device)(table, count, delay_ns)


def prepare(device: torch.device) -> None:
    """Compile ``write_rows`` for a GPU. Raises whatever Triton raises where it cannot."""
    with torch.cuda.device(device):
        _compiled(device)


@cache
def _compiled(device: torch.device) -> Callable[[torch.Tensor, int, int], None]:
    """The launch on a device, which must be the current one."""
    kernel: Any = write_rows

    def launch(table: torch.Tensor, count: int, delay_ns: int) -> None:
        kernel[(_PROGRAMS,)](table, count, delay_ns, BLOCK=_BLOCK, num_warps=8)

    with own_cache():
        launch(torch.zeros(3, dtype=torch.int64, device=device), 0, 0)
    return launch
