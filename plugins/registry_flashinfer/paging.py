"""Lengths and pages of sequences as FlashInfer's plans take them: where each sequence's pages begin, and their numbers.

A plan needs the lengths on the host, which a server knows, and is made once for all layers of a step. The ops' lengths
are on the device and may have changed since the last call, so that each call waits for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class PlannedPages(NamedTuple):
    """``lengths`` [batch], ``ends`` [batch + 1] and ``last``, slots of last pages, on the CPU; ``numbers`` of pages."""

    lengths: torch.Tensor
    ends: torch.Tensor
    last: torch.Tensor
    numbers: torch.Tensor

    @classmethod
    def of(cls, kv_lens: torch.Tensor, page: int, table: torch.Tensor | None) -> PlannedPages:
        """The pages that sequences have begun; without a table a sequence's room is one page. All are int32."""
        lengths = kv_lens.cpu()
        pages = (lengths + (page - 1)) // page
        ends = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
        last = lengths - (pages - 1).clamp_min(0) * page
        return cls(lengths, ends, last, _numbers(table, pages, kv_lens.device))


def _numbers(table: torch.Tensor | None, pages: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The numbers of pages, one sequence after the other, on the device."""
    if table is None:
        return pages.nonzero().flatten().to(device, torch.int32)
    begun = torch.arange(table.shape[1]) < pages[:, None]
    return table.flatten()[begun.flatten().nonzero().flatten().to(device)]
