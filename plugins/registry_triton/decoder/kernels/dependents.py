"""The begin of a kernel that is launched before the kernel ahead of it has ended."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def await_kernel_ahead(DEPENDENT: tl.constexpr):
    """Let the next kernel's programs start, and wait until the kernel ahead has ended; nothing without DEPENDENT.

    It stands before the first load and the first store.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
