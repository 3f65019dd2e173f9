"""Jobs and answers that cross between the tuning run and its children: plain data, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from ..artifact import Artifact, Target, Variant
from ..problem import Value

PROBED = "probed"
"""The name of a trial's detail that is true if the candidate was met with all probes: it may enter the finals."""

UNTESTED = "untested"
"""The name of a trial's detail that says in words what verification could not test, where it could not test all."""

Status = str
"""The status of a trial.

One of: ok, unsupported, compile_error, out_of_resources, wrong_result, nondeterministic, timeout, crash, out_of_memory
or error.
"""


@dataclass(frozen=True)
class Entrant:
    """A candidate to build and run, by name. ``role``: "candidate", "copy" (a second one of the incumbent), "floor".

    ``source``: the hash of its files as the run has read them, see ``source_digest``; "" if nobody compares them.
    """

    implementation: str
    config: Mapping[str, Any]
    artifacts: tuple[Artifact, ...] = ()
    role: str = "candidate"
    source: str = ""

    @property
    def by_key(self) -> Mapping[str, Artifact]:
        return {artifact.variant.key: artifact for artifact in self.artifacts}


@dataclass(frozen=True)
class TrialJob:
    """Verify and time a candidate on a problem. ``best_us``: the run's best so far, to give up hopeless ones early."""

    id: int
    op: str
    dims: Mapping[str, Value]
    entrant: Entrant
    protocol: Mapping[str, Any]
    seed: int
    best_us: float | None = None


@dataclass(frozen=True)
class BlockJob:
    """Time several entrants on one problem, one sample each in every of ``rounds`` rounds, in shuffled order.

    ``verify``: whether the timed outputs are checked again; not in a pre-final, which is no evidence.
    """

    id: int
    op: str
    dims: Mapping[str, Value]
    entrants: tuple[Entrant, ...]
    protocol: Mapping[str, Any]
    seed: int
    rounds: int
    verify: bool = True


@dataclass(frozen=True)
class VerificationJob:
    """Verify a candidate on one problem and its probes, without timing it.

    Either it may enter the problem's finals, or it won at another size and may answer for this one (``Op.transfers``).
    ``of_own_size``: leave out the probes of other sizes.
    """

    id: int
    op: str
    dims: Mapping[str, Value]
    entrant: Entrant
    protocol: Mapping[str, Any]
    seed: int
    of_own_size: bool = False


DeviceJob = TrialJob | BlockJob | VerificationJob
"""A job for the worker on the device."""


@dataclass(frozen=True)
class CompileJob:
    """Compile one variant."""

    id: int
    op: str
    implementation: str
    variant: Variant
    target: Target


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial. ``seconds`` is the worker's time."""

    status: Status
    message: str = ""
    samples: tuple[float, ...] = ()
    median_us: float | None = None
    censored: bool = False
    stop_reason: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A variant that did not compile."""

    status: Status
    message: str


@dataclass(frozen=True)
class TimedBlock:
    """The answer to a block: each entrant's time in µs in each round, or its fault."""

    times: tuple[tuple[float, ...], ...]
    faults: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    seconds: float


JobAnswer = Outcome | TimedBlock


def to_json(job: DeviceJob | CompileJob) -> dict[str, Any]:
    """A job as a message; the variant inside an artifact travels whole, so that a worker can load it."""
    return {"kind": type(job).__name__, **asdict(job)}


def job_from_json(message: Mapping[str, Any]) -> DeviceJob | CompileJob:
    """The job that ``to_json`` wrote."""
    return msgspec.convert(message, _KINDS[message["kind"]])


_KINDS: Mapping[str, type[DeviceJob | CompileJob]] = {
    kind.__name__: kind for kind in (TrialJob, BlockJob, VerificationJob, CompileJob)
}
