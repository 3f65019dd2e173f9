"""Other forms of calls that the ops in the box take: those of torch's functions and of other libraries.

Each is rewritten, by torch's own differentiable functions, into a call that the op's schema describes, which is tuned,
dispatched and recorded as any other. ``torch.ops.kernel_registry`` takes the schema's form alone.
"""

from __future__ import annotations

from .addition import add_forms
from .classes import cross_entropy_forms
from .converted import softmax_forms
from .norms import layer_norm_forms, rms_norm_forms
from .vectors import linear_forms

__all__ = [
    "add_forms",
    "cross_entropy_forms",
    "layer_norm_forms",
    "linear_forms",
    "rms_norm_forms",
    "softmax_forms",
]
