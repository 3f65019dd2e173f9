"""FlashAttention (Dao AI Lab, BSD-3-Clause): attention with its gradient, and decoding from a cache.

An adapter of three generations, each by its own distribution: flash-attn-4, written in CuTe's Python, which ``pip
install 'kernel-registry[flash-attn]'`` installs, flash-attn-3 for Hopper and flash-attn, the second. What is not
installed is unsupported.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("attention")
def attention_implementations() -> list[Implementation]:
    """``flash_attn_func`` of each generation; of the fourth also with keys split over programs."""
    from .forward import IMPLEMENTATIONS

    return [*IMPLEMENTATIONS]


@registry.implements("attention_backward")
def attention_backward_implementations() -> list[Implementation]:
    """The gradient of ``flash_attn_func`` of each generation."""
    from .backward import IMPLEMENTATIONS

    return [*IMPLEMENTATIONS]


@registry.implements("attention_decode")
def attention_decode_implementations() -> list[Implementation]:
    """``flash_attn_varlen_func`` of the fourth generation, also with keys split; ``flash_attn_with_kvcache`` before."""
    from .decode import IMPLEMENTATIONS

    return [*IMPLEMENTATIONS]
