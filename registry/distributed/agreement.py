"""Ranks of one job: whether all of them run the same winners, asked once at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ReleaseError

if TYPE_CHECKING:
    import torch.distributed

_PACKAGE = "kernel-registry"


def identity() -> dict[str, str]:
    """Everything by which this process chooses winners, apart from its hardware.

    release   the id of the release that it is pinned to, or "none"
    winners   a hash of the winners in the database that it reads, or "none"
    mode      of dispatch
    versions  of kernel-registry, torch and triton

    Raises ReleaseError if the pinned release is not found, StoreError for a database that cannot be read.
    """
    import torch

    from ..calls import dispatcher_of_process
    from ..device import installed_version
    from ..shipped import origin

    dispatcher = dispatcher_of_process()
    release, winners = dispatcher.winners_identity()
    return {
        "release": release or "none",
        "winners": winners or "none",
        "shipped winners": origin(),
        "mode": dispatcher.mode(),
        _PACKAGE: installed_version(_PACKAGE),
        "torch": torch.__version__,
        "triton": installed_version("triton"),
    }


def agree(group: torch.distributed.ProcessGroup | None = None) -> dict[str, str]:
    """Check that all ranks of a job have one ``identity``, which is returned. Call it on every rank, at the start.

    ``group``: the ranks to compare, None for all of torch.distributed's default group; with NCCL each rank has set its
    device before. A program without torch.distributed agrees with itself. Raises ReleaseError on every rank where one
    differs, with the ranks of each value, and on every rank if one of them cannot tell its winners.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return identity()
    try:
        told: dict[str, str] | str = identity()
    except Exception as fault:  # the others wait for this rank's answer
        told = f"{type(fault).__name__}: {fault}"
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, told, group)
    faults = [f"rank {rank}: {one}" for rank, one in enumerate(every) if isinstance(one, str)]
    if faults:
        raise ReleaseError(f"ranks cannot tell their winners: {'; '.join(faults)}")
    names = dict.fromkeys(name for one in every for name in one)
    if differing := [name for name in names if len({one.get(name) for one in every}) > 1]:
        told_all = "; ".join(f"{name}: {_by_value(name, every)}" for name in differing)
        raise ReleaseError(
            f"ranks do not run the same winners: {told_all}",
            hint="set KERNEL_REGISTRY_RELEASE to one release on every node, see docs/releases.md",
        )
    return dict(every[0])


def _by_value(name: str, every: Sequence[Mapping[str, str]]) -> str:
    """``1a2b3c on ranks 0, 1; none on rank 2``."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(every):
        ranks.setdefault(one.get(name, "none"), []).append(rank)
    return ", ".join(
        f"{value[:20]} on {'rank' if len(found) == 1 else 'ranks'} {' '.join(map(str, found))}"
        for value, found in ranks.items()
    )
