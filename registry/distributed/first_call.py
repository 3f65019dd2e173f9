"""The comparison of ranks at their first call, for which ``KERNEL_REGISTRY_AGREE=1`` asks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping

from ..errors import InvalidArgumentError, ReleaseError
from .agreement import identity
from .default_store import default_store

VARIABLE = "KERNEL_REGISTRY_AGREE"

_KEY = "kernel-registry/identity"
_asking = threading.Lock()


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """True if the variable asks for the comparison. Raises InvalidArgumentError for a value that is not known."""
    told = environ.get(VARIABLE, "")
    if told not in {"", "0", "1"}:
        raise InvalidArgumentError(f"{VARIABLE}={told!r:.40}", hint="expected 1: compare ranks at the first call; or 0")
    return told == "1"


def compared() -> bool:
    """Compare this rank's ``identity`` with that of the rank which was first; False if it is too early for that.

    It is too early before ``torch.distributed.init_process_group``, while another thread compares, and while a CUDA
    stream is captured. No rank waits for another: each finds the first one's identity in the store by which they have
    met. Raises ReleaseError on a rank that differs from the first, at this call and at later ones.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    if not _asking.acquire(blocking=False):
        return False
    try:
        store = default_store()
        if store is None:
            raise ReleaseError(
                f"{VARIABLE}=1: this version of torch does not tell the store of its ranks",
                hint="call registry.distributed.agree() on every rank, after init_process_group",
            )
        own = {"rank": str(dist.get_rank()), **identity()}
        first: dict[str, str] = json.loads(store.compare_set(_KEY, "", json.dumps(own)))
        _refuse_another(own, first)
    finally:
        _asking.release()
    return True


def _refuse_another(own: Mapping[str, str], first: Mapping[str, str]) -> None:
    names = [name for name in dict.fromkeys([*own, *first]) if name != "rank"]
    told = [
        f"{name}: {own.get(name, 'none')[:20]} here, {first.get(name, 'none')[:20]} on rank {first['rank']}"
        for name in names
        if own.get(name) != first.get(name)
    ]
    if told:
        raise ReleaseError(
            f"rank {own['rank']} does not run the winners of rank {first['rank']}: {'; '.join(told)}",
            hint="set KERNEL_REGISTRY_RELEASE to one release on every node, see docs/releases.md",
        )
