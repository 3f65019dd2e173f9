"""Liger (LinkedIn, BSD-2-Clause): norms, gated activations, softmax, rotary embedding and the loss of a last layer.

An adapter: the library is installed by ``pip install 'kernel-registry[liger]'``, and all is unsupported without it.
Some of its functions are left out. Its cross-entropy returns no log-sum-exp, from which the op's gradient is computed,
and writes zeros into ignored rows of the logits; so does the loss of its linear layer without the gradients. The
gradient of its softmax has no name of its own. Its fused add and norm writes new tensors, where the op writes in place.
"""

from __future__ import annotations

import registry
from registry import Implementation

KERNEL_REGISTRY_API = 1


@registry.implements("softmax")
def softmax_implementations() -> list[Implementation]:
    """``LigerSoftmaxFunction``."""
    from .rows import SOFTMAX

    return [SOFTMAX]


@registry.implements("rms_norm")
def rms_norm_implementations() -> list[Implementation]:
    """``rms_norm_forward``."""
    from .norms import RMS_NORM

    return [RMS_NORM]


@registry.implements("rms_norm_backward")
def rms_norm_backward_implementations() -> list[Implementation]:
    """``rms_norm_backward``, after torch's norm of each row."""
    from .norms import RMS_NORM_BACKWARD

    return [RMS_NORM_BACKWARD]


@registry.implements("layer_norm")
def layer_norm_implementations() -> list[Implementation]:
    """``layer_norm_forward``."""
    from .norms import LAYER_NORM

    return [LAYER_NORM]


@registry.implements("layer_norm_backward")
def layer_norm_backward_implementations() -> list[Implementation]:
    """``layer_norm_backward``, after ``layer_norm_forward`` for its statistics."""
    from .norms import LAYER_NORM_BACKWARD

    return [LAYER_NORM_BACKWARD]


@registry.implements("silu_and_mul")
def silu_and_mul_implementations() -> list[Implementation]:
    """``swiglu_fused_gate_up_forward``."""
    from .gated import SILU_AND_MUL

    return [SILU_AND_MUL]


@registry.implements("silu_and_mul_backward")
def silu_and_mul_backward_implementations() -> list[Implementation]:
    """``swiglu_fused_gate_up_backward``."""
    from .gated import SILU_AND_MUL_BACKWARD

    return [SILU_AND_MUL_BACKWARD]


@registry.implements("gelu_and_mul")
def gelu_and_mul_implementations() -> list[Implementation]:
    """``geglu_forward`` of copies of both halves."""
    from .gated import GELU_AND_MUL

    return [GELU_AND_MUL]


@registry.implements("gelu_and_mul_backward")
def gelu_and_mul_backward_implementations() -> list[Implementation]:
    """``geglu_backward`` of copies of both halves."""
    from .gated import GELU_AND_MUL_BACKWARD

    return [GELU_AND_MUL_BACKWARD]


@registry.implements("rotary_embedding")
def rotary_embedding_implementations() -> list[Implementation]:
    """``rope_forward`` with the table's rows of the positions."""
    from .rotary import ROTARY_EMBEDDING

    return [ROTARY_EMBEDDING]


@registry.implements("apply_rotary")
def apply_rotary_implementations() -> list[Implementation]:
    """``rope_forward`` of copies, with the table's rows of the positions."""
    from .apply_rotary import APPLY_ROTARY

    return [APPLY_ROTARY]


@registry.implements("apply_rotary_backward")
def apply_rotary_backward_implementations() -> list[Implementation]:
    """``rope_backward`` of copies, with the table's rows of the positions."""
    from .apply_rotary import APPLY_ROTARY_BACKWARD

    return [APPLY_ROTARY_BACKWARD]


@registry.implements("fused_linear_cross_entropy_gradients")
def fused_linear_cross_entropy_gradients_implementations() -> list[Implementation]:
    """``fused_linear_cross_entropy_forward``, with its dtype of sums and its size of a chunk to tune."""
    from .linear_loss import LigerLinearLoss

    return [LigerLinearLoss()]
