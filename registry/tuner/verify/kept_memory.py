"""Tells whether functional code keeps memory that it has returned, and may write to again.

A ring of buffers comes round in the end, but hundreds of large ones take longer than a trial may. Nobody needs to wait
for that: memory that nobody but the candidate holds is not the caller's.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .verdicts import WrongError

_LATER = 2
"""Calls after which a result must be free: code may hold its latest one until the next call has replaced it."""
FEWEST_CALLS = _LATER + 1
"""Calls by which something is found."""
_KEPT = (
    "it keeps memory that it has returned, after its caller has let go of it: a later call may write there while"
    " another caller still uses the result. Return new memory in each call, and keep none of it"
)


class KeptMemory:
    """Watches the memory of what calls return, without holding it."""

    def __init__(self) -> None:
        self._calls: list[Sequence[StorageWeakRef]] = []

    def returned(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note of what one call has returned, or several calls; the caller then has to let go of it.

        What a replayed graph has written to again is noted once.
        """
        noted = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
        if noted not in self._calls[-1:]:
            self._calls.append(noted)

    def check(self) -> None:
        """Raise WrongError if memory of all but the latest calls is still held by somebody."""
        if self._is_kept():
            # objects that refer to each other are no owner
            gc.collect()
            if self._is_kept():
                raise WrongError("wrong_result", _KEPT)

    def _is_kept(self) -> bool:
        return any(not storage.expired() for call in self._calls[:-_LATER] for storage in call)


def is_torchs_own(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is of torch's allocator; NumPy's, or another library's, has an owner of its own."""
    return tensor.untyped_storage().resizable()
