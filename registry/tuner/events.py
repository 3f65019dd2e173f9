"""Events of a tuning run, as frozen records: an observer is given each when it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuning_db import Interval, is_noise

from ..problem import Problem
from ..space import Config


@dataclass(frozen=True)
class RunStarted:
    """``known`` problems have a valid winner here that has met all implementations: they are not tuned again."""

    device: str
    problems: tuple[Problem, ...]
    known: tuple[Problem, ...]
    database: str


@dataclass(frozen=True)
class ProblemSkipped:
    """A problem that cannot be tuned on this device, e.g. because it does not fit its memory.

    ``faulty``: nor on another one, for a fault of its op.
    """

    problem: Problem
    reason: str
    faulty: bool = False


@dataclass(frozen=True)
class ProblemStarted:
    """The search of a problem begins; ``candidates`` is the most trials that it will make."""

    problem: Problem
    candidates: int
    floor_us: float | None


@dataclass(frozen=True)
class TrialDone:
    """One candidate tried. ``median_us`` is None unless status is ``ok``; ``best_us`` so far includes this one.

    ``device``: where it was tried, e.g. ``cuda:1``; "" for one that did not compile.
    """

    problem: Problem
    implementation: str
    config: Config
    status: str
    message: str
    median_us: float | None
    done: int
    candidates: int
    best_us: float | None
    floor_us: float | None
    seconds_left: float | None
    device: str = ""


@dataclass(frozen=True)
class Incumbent:
    """The candidate that the winner had to beat: the earlier stored winner (``stored``), or else the default."""

    implementation: str
    config: Config
    stored: bool


@dataclass(frozen=True)
class Result:
    """A problem's outcome, as the closing table shows it.

    Ratios are of the finals, paired: ``speedup`` maps another implementation's name to its time over the winner's.
    ``verdict`` is ``new``, ``replaced``, ``kept``, ``tie`` or ``none``; ``reason`` says why there is none, or which
    stored winner was out before a ``new`` one could beat it. ``ratio`` is the ``incumbent``'s time over the winner's,
    with its interval ``low`` to ``high``; ``noise`` is relative. ``ties`` are the candidates that could not be told
    from the winner. ``default_ratio`` is the default's time over the winner's. ``noisy`` are the implementations whose
    ``speedup`` says nothing, as far as the finals tell: see ``is_noise``. ``baseline`` is the op's. ``hardware``
    is the name of the device, or of the equal devices, that it holds for.
    """

    problem: Problem
    implementation: str
    config: Config
    median_us: float | None
    floor_us: float | None
    speedup: Mapping[str, float]
    verdict: str
    statuses: Counter[str] = field(default_factory=Counter)
    incumbent: Incumbent | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    noise: float | None = None
    ties: tuple[str, ...] = ()
    default_ratio: Interval | None = None
    reason: str = ""
    baseline: str = "torch.native"
    hardware: str = ""
    noisy: frozenset[str] = frozenset()

    @property
    def is_noise(self) -> bool:
        """Whether other work disturbed the finals so much that no ratio of them tells by how much it is faster."""
        default = self.default_ratio
        return is_noise(self.low, self.high) or (default is not None and is_noise(default.low, default.high))

    @property
    def fraction_of_floor(self) -> float | None:
        """Time of a device copy that moves the same bytes, over the winner's time; 1.0 is as fast as a copy."""
        return self.floor_us / self.median_us if self.floor_us and self.median_us else None


@dataclass(frozen=True)
class FinalsStarted:
    """The searches are over; the finals of ``problems`` begin, with ``blocks`` for the problem that needs most."""

    problems: int
    blocks: int


@dataclass(frozen=True)
class BlockStarted:
    """Block ``number`` of ``blocks`` of the finals begins: a fresh process times the finalists of ``problems``."""

    number: int
    blocks: int
    problems: int


@dataclass(frozen=True)
class ProbesStarted:
    """Before the finals ``candidates`` of them are verified on the probes that their trials left out."""

    candidates: int


@dataclass(frozen=True)
class TransfersStarted:
    """The finals are judged; ``winners`` are verified at other sizes of static dimensions, by ``checks`` checks."""

    winners: int
    checks: int


@dataclass(frozen=True)
class SecondsLeft:
    """An estimate of the seconds until the run is over, from its pace so far."""

    seconds: float


@dataclass(frozen=True)
class ProblemDecided:
    """A problem's finals are over: its winner was stored or kept, or it has none."""

    result: Result


@dataclass(frozen=True)
class Note:
    """A message for the user about an event that does not stop the run, e.g. a worker was replaced."""

    message: str


@dataclass(frozen=True)
class Saving:
    """The time that winners save a program whose calls were counted.

    ``share`` of its time, as estimated, is in the problems that have winners now. Where the default was timed beside
    them, the calls that were counted take ``default_us`` by defaults, ``low_us`` to ``high_us`` with what is known of
    the noise, and ``winner_us`` by winners.
    """

    share: float
    default_us: float
    low_us: float
    high_us: float
    winner_us: float


@dataclass(frozen=True)
class DeviceUse:
    """How busy a run kept one of its devices, in the fields of RunEnded; ``identity`` is the device's UUID."""

    device: str
    identity: str
    trials: int
    worker_seconds: float
    worker_share: float | None
    kernel_share: float | None


@dataclass(frozen=True)
class RunEnded:
    """The end of a run. ``interrupted``: stopped by Ctrl-C; what was measured is stored.

    ``worker_seconds``: how long the worker had a job. ``worker_share`` and ``kernel_share`` are the shares of the time
    after ``warming_up_s`` in which the worker had a job and in which a kernel ran, by the driver, kernels that hold
    launches back included (None for a run that ended before, or where nothing tells). ``compile_seconds``: summed over
    the compiling processes, by backend, e.g. ``inductor`` for torch.compile. ``saving`` is there when the problems had
    counts. ``timed_out``: the time limit was reached, and ``undecided`` problems were left out. Of several ``devices``
    the seconds are added up, and the shares are their mean.
    """

    seconds: float
    worker_seconds: float
    trials: int
    interrupted: bool
    undecided: int
    worker_share: float | None = None
    kernel_share: float | None = None
    compile_seconds: Mapping[str, float] = field(default_factory=dict)
    saving: Saving | None = None
    warming_up_s: float = 0.0
    timed_out: bool = False
    devices: tuple[DeviceUse, ...] = ()


Event = (
    RunStarted
    | ProblemSkipped
    | ProblemStarted
    | TrialDone
    | SecondsLeft
    | FinalsStarted
    | BlockStarted
    | ProbesStarted
    | TransfersStarted
    | ProblemDecided
    | Note
    | RunEnded
)
Observer = Callable[[Event], None]
