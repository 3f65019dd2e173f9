"""A Triton kernel that does next to nothing, to time its launch."""

import triton
import triton.language as tl


@triton.jit
def copy_rows(y, x, cols, BLOCK: tl.constexpr):
    """One program a row."""
    offsets = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < cols
    tl.store(y + offsets, tl.load(x + offsets, mask=mask), mask=mask)
