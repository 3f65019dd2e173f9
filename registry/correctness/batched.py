"""Equal work on many tensors in one call of torch, since a call costs the host more than a small kernel the device.

``torch._foreach_*`` are documented nowhere; where torch lacks one, a loop does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# bound at import, so that a candidate's later patch is not called
_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], object] | None = getattr(torch, "_foreach_copy_", None)


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each of ``sources`` into the one of ``targets`` at its index, of the source's shape and dtype."""
    if _copy is not None and targets:
        _copy(list(targets), list(sources))
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
