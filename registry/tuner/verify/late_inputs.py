"""Inputs that arrive late: written by a kernel that lets the next one begin before it has written a byte.

A kernel that is launched as a dependent one (``registry.backends.programmatic_launch``) and reads its inputs before it
waits reads what was there before. Behind torch's kernels, which never let it begin early, it would look right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import torch

from ...backends.programmatic_launch import launches_dependents
from ...device import Device

_DELAY_NS = 20_000
"""Time for the blocks of the next kernel to begin, and to load what they load before they wait."""
_MOST_BYTES = 64 << 20
"""The most bytes of one call's inputs that are late, so that a trial does not wait for copies."""

_Write = Callable[[torch.Tensor, int, int], None]
"""Writes by a table of targets, sources and bytes on the device, given its length and a delay in ns."""


class LateInputs:
    """Overwrites tensors, and writes their contents back by a kernel that the next launch need not wait for."""

    def __init__(self, tensors: Sequence[torch.Tensor], write: _Write) -> None:
        self._write = write
        targets = [_bytes(tensor) for tensor in tensors]
        contents = [target.clone() for target in targets]
        spoilt = [_spoilt(tensor, target) for tensor, target in zip(tensors, targets, strict=True)]
        self._kept = (targets, contents, spoilt)
        self._count = len(targets)
        self._spoiling, self._writing = (_table(targets, sources) for sources in (spoilt, contents))

    def spoil(self) -> None:
        """Overwrite the tensors by NaN, or by 0 where a number may be an index. No version counter moves."""
        self._write(self._spoiling, self._count, 0)

    def arrive(self) -> None:
        """Write the contents back, on the current stream: a dependent launch that comes next begins before."""
        self._write(self._writing, self._count, _DELAY_NS)


def late_inputs(device: Device, tensors: Iterable[torch.Tensor]) -> LateInputs | None:
    """The tensors as late inputs; None on a device that launches no dependents, and without Triton.

    Tensors beyond 64 MiB in all, those without elements and those of which several elements share memory are left out.
    """
    write = _writer() if launches_dependents(device) else None
    if write is None:
        return None
    taken, total = [], 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.nbytes):
        span = _span(tensor)
        if tensor.numel() and tensor.numel() == span and total + tensor.nbytes <= _MOST_BYTES:
            taken.append(tensor)
            total += tensor.nbytes
    return LateInputs(taken, write) if taken else None


def _span(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, as bytes."""
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,)).view(torch.uint8)


def _spoilt(tensor: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    value = torch.nan if tensor.is_floating_point() else 0
    return torch.full((tensor.numel(),), value, dtype=tensor.dtype, device=target.device).view(torch.uint8)


def _table(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [(to.data_ptr(), source.data_ptr(), to.numel()) for to, source in zip(targets, sources, strict=True)]
    return torch.tensor(rows, dtype=torch.int64).to(targets[0].device)


@lru_cache(maxsize=1)
def _writer() -> _Write | None:
    try:
        from ...backends.triton.late_write import write_late
    except ImportError:
        return None
    return write_late
