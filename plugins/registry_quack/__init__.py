"""QuACK (Dao AI Lab, Apache-2.0): softmax, norms and cross-entropy by kernels over clusters of thread blocks.

An adapter: the library is installed by ``pip install 'kernel-registry[quack]'``, and all is unsupported without it.
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


@registry.implements("rms_norm_backward")
def rms_norm_backward_implementations() -> list[Implementation]:
    """``quack.rms_norm_backward``, after torch's norm of each row."""
    from .norms import RMS_NORM_BACKWARD

    return [RMS_NORM_BACKWARD]


@registry.implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> list[Implementation]:
    """``quack.fused_add_rms_norm``."""
    from .norms import FUSED_ADD_RMS_NORM

    return [FUSED_ADD_RMS_NORM]


@registry.implements("layer_norm")
def layer_norm_implementations() -> list[Implementation]:
    """``quack.layer_norm``."""
    from .norms import LAYER_NORM

    return [LAYER_NORM]


@registry.implements("layer_norm_backward")
def layer_norm_backward_implementations() -> list[Implementation]:
    """``quack.layer_norm_backward``, after the forward kernel for its statistics."""
    from .norms import LAYER_NORM_BACKWARD

    return [LAYER_NORM_BACKWARD]


@registry.implements("cross_entropy")
def cross_entropy_implementations() -> list[Implementation]:
    """``quack.cross_entropy``."""
    from .losses import CROSS_ENTROPY

    return [CROSS_ENTROPY]


@registry.implements("cross_entropy_backward")
def cross_entropy_backward_implementations() -> list[Implementation]:
    """``quack.cross_entropy_backward``."""
    from .losses import CROSS_ENTROPY_BACKWARD

    return [CROSS_ENTROPY_BACKWARD]
