"""The options of a tuning run beside its problems: of the command, and of ``registry.tune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuning_db.queue.entries import Fence

from .limits import Budget, Limits
from .measure.protocol import REGIME, TimingProtocol
from .patience import PATIENCE_S
from .search.samplers.names import DEFAULT
from .workers.device_client import WorkerProgram


@dataclass(frozen=True)
class TuneOptions:
    """Options of a tuning run.

    budget           limits of each problem's search, and of the whole run
    limits           seconds that a step of a child may take, and its memory
    implementations  names of those that take part; empty for all
    retune           tune problems with a valid winner here, too; the winner is the one to beat
    all_sizes        tune every size along which winners transfer, not one of each range, see ``represented``
    regime           of the timing: "cold" or "hot"; dispatch runs winners of "cold"
    sampler          the name of the sampler that proposes candidates, see ``sampler_named``
    storage          a file or URL in which Optuna keeps the searches, see ``open_storage``; "" for none
    patience_s       how long the database may be away before the run ends for it
    details          kept with the run in the database, e.g. the job of a fleet
    device_variance  variance of a log ratio between devices of the model, which decisions allow for
    program          what the processes run that verify and time candidates
    protocol         of the timing; None for the usual one of the device
    fence            the lease of a fleet's job, without which nothing is decided; None for a run of a user
    """

    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=Limits)
    implementations: Sequence[str] = ()
    retune: bool = False
    all_sizes: bool = False
    regime: str = REGIME
    sampler: str = DEFAULT
    storage: str = ""
    patience_s: float = PATIENCE_S
    details: Mapping[str, str | int] = field(default_factory=dict)
    device_variance: float = 0.0
    program: WorkerProgram = field(default_factory=WorkerProgram)
    protocol: TimingProtocol | None = None
    fence: Fence | None = None
