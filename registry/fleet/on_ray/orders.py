"""Orders to the process of the cluster, and its answers: plain data, which needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NO_PLACE = 3
"""Exit code of the cluster's process when no node can work, or may: each has said why."""


@dataclass(frozen=True)
class ClusterOrders:
    """Settings of a fleet on Ray.

    address    of the cluster: "auto", "ray://head:10001", "local" for a cluster on this machine alone
    database   URL that every node reaches; "" to be told the models of the cluster's GPUs, and nothing else
    device     "cuda": a worker for each GPU; "cpu": one for each node
    plugins    name -> text of plugin files
    compilers  CPU actors that compile ahead
    models     of the devices whose jobs are worked on; empty for all
    """

    address: str
    database: str
    device: str = "cuda"
    lease_s: float = 180.0
    plugins: Mapping[str, str] = field(default_factory=dict)
    compilers: int = 0
    models: Sequence[str] = ()

    def concerns(self, device: str) -> bool:
        """Whether jobs for this model of device are worked on."""
        return not self.models or device in self.models


@dataclass(frozen=True)
class ClusterEvent:
    """An event of the cluster: connected, models, joined, left, lost, said, compiled, database."""

    event: str
    where: str
    text: str
