"""Formats of quantised checkpoints: which tensors a packed layer has in a file, and the PackedWeight that they make."""

from __future__ import annotations

from .formats import FOREIGN, METHOD, checkpoint_format, method_of
from .headers import TensorFiles
from .layer_format import LayerFormat
from .own import PackedForm

__all__ = ["FOREIGN", "METHOD", "LayerFormat", "PackedForm", "TensorFiles", "checkpoint_format", "method_of"]
