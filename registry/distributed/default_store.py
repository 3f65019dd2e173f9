"""The key-value store of torch.distributed's default group, which torch has no public function for."""

from __future__ import annotations

from typing import Any


def default_store() -> Any | None:
    """The store by which the ranks of the default group have met; None where this torch does not tell it."""
    from torch.distributed import distributed_c10d

    find = getattr(distributed_c10d, "_get_default_store", None)
    return None if find is None else find()
