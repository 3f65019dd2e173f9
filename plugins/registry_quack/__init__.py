"""QuACK (Dao AI Lab, Apache-2.0): softmax, its gradient and rms_norm by kernels over clusters of thread blocks.

An adapter: the library is installed by ``pip install 'kernel-registry[quack]'``, and all is unsupported without it. Its
cross-entropy is left out, which knows no label smoothing, and its gradient of rms_norm, which needs what its forward
pass has stored.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("softmax")
def softmax_implementations() -> list[Implementation]:
    """``quack.softmax``."""
    from .rows import rows_of, softmax

    return [rows_of("softmax", softmax)]


@registry.implements("softmax_backward")
def softmax_backward_implementations() -> list[Implementation]:
    """``quack.softmax_backward``."""
    from .rows import rows_of, softmax_backward

    return [rows_of("softmax_backward", softmax_backward)]


@registry.implements("rms_norm")
def rms_norm_implementations() -> list[Implementation]:
    """``quack.rms_norm``."""
    from .rows import rms_norm, rows_of

    return [rows_of("rms_norm", rms_norm)]
