"""Memory that arrives late: written by a kernel that lets the next one begin before it has written a byte.

A kernel that is launched as a dependent one (``registry.backends.programmatic_launch``) and reads its inputs before it
waits reads what was there before, and what it stores before it waits is overwritten. Behind torch's kernels, which
never let it begin early, both would look right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import torch

from ...backends.programmatic_launch import launches_dependents
from ...device import Device
from ...faults.device_faults import out_of_memory

_DELAY_NS = 20_000
"""Time for the blocks of the next kernel to begin, and to load or store what they do before they wait."""
_MOST_BYTES = 64 << 20
"""The most bytes of one call that are late, so that a trial does not wait for copies."""
_PIECES = 16
"""Parts of a tensor that is not late as a whole: the first, the last, and those at equal distances between them."""

_Write = Callable[[torch.Tensor, int, int], None]
"""Writes by a table of targets, sources and bytes on the device, given its length and a delay in ns."""


class LateInputs:
    """Pieces of inputs and outputs that are written by a kernel which the next launch need not wait for.

    Inputs are overwritten first, and get their contents back. Outputs, and scratch, get once more what they hold.
    The object must live until the stream has run what ``spoil`` and ``arrive`` have queued.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], write: _Write) -> None:
        """All tensors are rows without gaps; their contents are copied."""
        self._write = write
        targets = list(map(_bytes, (*inputs, *outputs)))
        contents = [target.clone() for target in targets]
        spoilt = list(map(_spoilt, inputs))
        self._kept = (targets, contents, spoilt)
        self._writing = _table(targets, contents)
        self._spoiling = _table(targets[: len(inputs)], spoilt) if inputs else None

    def spoil(self) -> None:
        """Overwrite the inputs by NaN, or by 0 where a number may be an index. No version counter moves."""
        if self._spoiling is not None:
            self._write(self._spoiling, len(self._spoiling), 0)

    def arrive(self) -> None:
        """Write the contents back, on the current stream: a dependent launch that comes next begins before."""
        self._write(self._writing, len(self._writing), _DELAY_NS)


def late_inputs(
    device: Device, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor] = ()
) -> LateInputs | None:
    """A call's memory as late inputs; None on a device that launches no dependents, and where ``late_fault`` says why.

    ``outputs``: what the call writes, scratch too; it holds what no right result does. All memory of a tensor is late,
    from its first to its last element, also between them. Of more than 64 MiB in all the largest tensors are late in
    parts: 16 pieces, of which one begins at the first element and one ends at the last.
    """
    write = _writer(device)[0]
    if write is None:
        return None
    given = [list(inputs), list(outputs)]
    shares = iter(_shares([_span(tensor) * tensor.element_size() for tensor in itertools.chain(*given)]))
    taken = [[piece for tensor in tensors for piece in _pieces(tensor, next(shares))] for tensors in given]
    return LateInputs(taken[0], taken[1], write) if any(taken) else None


def late_fault(device: Device) -> str:
    """Why no memory can arrive late on a device that launches dependent kernels; "" if it can, or need not.

    The first call on a device compiles the kernel that writes.
    """
    return _writer(device)[1]


def _shares(sizes: Sequence[int]) -> list[int]:
    """The bytes of each tensor that are late, given the sizes of all: what small ones leave is for the larger ones."""
    shares, left = [0] * len(sizes), _MOST_BYTES
    for done, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares


def _pieces(tensor: torch.Tensor, share: int) -> Iterator[torch.Tensor]:
    """Rows of a tensor's memory that hold ``share`` bytes: all of it as one row, or several of equal length."""
    span, room = _span(tensor), share // tensor.element_size()
    if 0 < span <= room:
        yield _row(tensor, 0, span)
    elif size := room // _PIECES:
        for number in range(_PIECES):
            yield _row(tensor, (span - size) * number // (_PIECES - 1), size)


def _row(tensor: torch.Tensor, start: int, size: int) -> torch.Tensor:
    return torch.as_strided(tensor.detach(), (size,), (1,), tensor.storage_offset() + start)


def _span(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory, with those between that are not its own."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _bytes(row: torch.Tensor) -> torch.Tensor:
    return row.view(torch.uint8)


def _spoilt(row: torch.Tensor) -> torch.Tensor:
    return _bytes(torch.full_like(row, torch.nan if row.is_floating_point() else 0))


def _table(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [(to.data_ptr(), source.data_ptr(), to.numel()) for to, source in zip(targets, sources, strict=True)]
    return torch.tensor(rows, dtype=torch.int64).to(targets[0].device)


@lru_cache(maxsize=16)
def _writer(device: Device) -> tuple[_Write | None, str]:
    """The function that writes inputs late on a device, or None, with the fault where it cannot be had but should.

    Raises the device's error where memory is short.
    """
    if not launches_dependents(device):
        return None, ""
    try:
        from ...backends.triton.late_write import prepare, write_late

        prepare(device.torch)
    except ImportError:
        return None, "inputs do not arrive late: Triton is not there"
    except Exception as fault:  # a compiler may raise anything, and no candidate is to blame for it
        if out_of_memory(fault):
            raise
        reason = (str(fault).strip() or "no message").splitlines()[0]
        return None, f"inputs do not arrive late: the kernel that writes them fails: {type(fault).__name__}: {reason}"
    return write_late, ""
