"""The op's tables of a model's cosines and sines, made once for all layers of a forward."""

from __future__ import annotations

import torch

from ...dispatch.torch_side.states import differentiating_otherwise
from ..transformers.forwards.rotary import RotaryTables, tables_of

_KNOWN = "registry_angles"


class _Angles:
    """What cosines carry: their tables, None where halves differ, and for which sines and changes in place."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, batch: int) -> None:
        self._sin, self._versions = sin, (cos._version, sin._version)
        self._batch = batch
        self.tables = tables_of((cos, sin), batch) if _halves_are_equal(cos) and _halves_are_equal(sin) else None

    def hold(self, cos: torch.Tensor, sin: torch.Tensor, batch: int) -> bool:
        """Whether these are the tables of the cosines and sines as they are now, and may be saved for a gradient."""
        if torch.is_grad_enabled() and self.tables is not None and self.tables.table.is_inference():
            return False
        return sin is self._sin and (cos._version, sin._version) == self._versions and batch == self._batch


def tables_for(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> RotaryTables | None:
    """The tables of cosines and sines [1 or batch, seq, head_dim]; None where the op does not compute the rotation.

    To look at both halves the host waits for the GPU, once for all layers that share the cosines.
    """
    if type(cos) is not torch.Tensor or type(sin) is not torch.Tensor or cos.dim() != 3 or cos.shape != sin.shape:
        return None
    if (
        cos.requires_grad
        or sin.requires_grad
        or cos.is_inference()
        or sin.is_inference()
        or differentiating_otherwise()
    ):
        return None
    if q.dim() != 4 or cos.shape[0] not in {1, q.shape[0]} or cos.is_meta:
        return None
    known: _Angles | None = getattr(cos, _KNOWN, None)
    if known is None or not known.hold(cos, sin, q.shape[0]):
        if cos.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        known = _Angles(cos, sin, q.shape[0])
        setattr(cos, _KNOWN, known)
    return known.tables


def _halves_are_equal(angles: torch.Tensor) -> bool:
    one, other = angles.chunk(2, -1)
    return angles.shape[-1] % 2 == 0 and torch.equal(one, other)
