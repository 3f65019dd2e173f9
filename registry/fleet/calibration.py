"""Calibration: the same problems timed on every device of a model, which shows slow devices and how much others differ.

Each worker times the entries before its first job and after every job. A device that is slower than its kind by more
than the others differ (throttled, shared with another program, broken) is set aside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuning_db.queue.calibrations import DeviceTimes

from ..device import Device
from ..problem import Value
from ..tuner.jobs import BlockJob, Entrant, TimedBlock
from ..tuner.limits import Limits
from ..tuner.measure.protocol import REGIME, TimingProtocol
from ..tuner.workers.crew import Crew

_ROUNDS = 20
_SLOW = 0.05
"""The least relative slowness that sets a device aside."""
_DEVIATIONS = 5.0
"""Robust standard deviations of its kind's devices by which a device must be slower, too."""
_MAD = 1.4826
"""A standard deviation over the median absolute deviation, of normally distributed values."""
_FEWEST = 3
"""Devices below which no median tells which one is slow; of two, the faster one is the kind."""

CALIBRATION: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "cuda": {
        "square": {"n": 1 << 26, "dtype": "float32"},
        "softmax": {"rows": 8192, "cols": 8192, "dtype": "bfloat16"},
        "linear": {"m": 4096, "n": 4096, "k": 4096, "bias": False, "dtype": "bfloat16"},
    },
    "cpu": {
        "square": {"n": 1 << 20, "dtype": "float32"},
        "softmax": {"rows": 256, "cols": 1024, "dtype": "float32"},
        "linear": {"m": 128, "n": 256, "k": 256, "bias": False, "dtype": "float32"},
    },
}
"""Problems of a calibration by type of device: limited by memory, by both, and by arithmetic."""

_NATIVE = Entrant("torch.native", {})
_COPY = Entrant("", {}, (), "floor")


@dataclass(frozen=True)
class KindOfDevice:
    """The devices of a model, as their calibrations show them.

    ``slower``: identity -> by how much it is slower than its kind (0.1: 10%), in its worst entry; ``slow``: those that
    are to be set aside. ``variance``: of a log ratio of two times, between devices that are not slow.
    """

    devices: int
    slower: Mapping[str, float] = field(default_factory=dict)
    slow: frozenset[str] = frozenset()
    variance: float = 0.0

    @classmethod
    def of(cls, times: DeviceTimes) -> KindOfDevice:
        """The kind of device that calibrations show; entries that not every device has are left out."""
        common = set.intersection(*(set(each) for each in times.values())) if times else set()
        if len(times) < 2 or not common:
            return cls(len(times))
        names = sorted(common)
        logs = {identity: [math.log(each[name]) for name in names] for identity, each in times.items()}
        usual = [_usual([each[place] for each in logs.values()]) for place in range(len(names))]
        worst = {
            identity: max(own - kind for own, kind in zip(each, usual, strict=True)) for identity, each in logs.items()
        }
        slow = frozenset(identity for identity in worst if worst[identity] > _limit(identity, worst))
        left = [each for identity, each in logs.items() if identity not in slow]
        slower = {identity: math.expm1(value) for identity, value in worst.items()}
        return cls(len(times), slower, slow, _variance(left))

    def fault(self, identity: str) -> str:
        """Why a device is set aside, "" if it is not."""
        if identity not in self.slow:
            return ""
        return (
            f"{identity} is {self.slower[identity]:.0%} slower than the other {self.devices - 1} of its model: "
            "throttled, shared with another program, or broken"
        )


def measure(device: Device, files: Sequence[str], tell: Callable[[str], None]) -> dict[str, float]:
    """Median times in µs of the calibration's entries on a device; an entry that fails is left out.

    Entries are ``copy`` (a device copy of the bytes of ``square``) and torch's own implementation of each problem.
    """
    details = dict(TimingProtocol.of(device, REGIME).details)
    jobs = [
        BlockJob(0, op, dims, (_COPY, _NATIVE) if op == "square" else (_NATIVE,), details, 0, _ROUNDS, verify=False)
        for op, dims in CALIBRATION[device.type].items()
    ]
    crew = Crew((device,), files, Limits(), tell, cores=())
    try:
        crew.start_workers()
        answers = crew.run_blocks(jobs)
    finally:
        crew.close()
    found: dict[str, float] = {}
    for job, answer in zip(jobs, answers, strict=True):
        names = ["copy" if entrant.role == "floor" else job.op for entrant in job.entrants]
        if not isinstance(answer, TimedBlock):
            tell(f"calibration: {job.op} was not timed: {answer.message}")
            continue
        for name, us, fault in zip(names, answer.times, answer.faults, strict=True):
            if us:
                found[name] = statistics.median(us)
            else:
                tell(f"calibration: {name} was not timed: {fault}")
    return found


def _usual(values: Sequence[float]) -> float:
    return statistics.median(values) if len(values) >= _FEWEST else min(values)


def _limit(identity: str, worst: Mapping[str, float]) -> float:
    """The log ratio above which a device is slow, given how much the others of its kind differ."""
    others = [value for name, value in worst.items() if name != identity]
    centre = statistics.median(others)
    deviation: float = _MAD * statistics.median(abs(value - centre) for value in others)
    return max(math.log1p(_SLOW), centre + _DEVIATIONS * deviation)


def _variance(logs: Sequence[Sequence[float]]) -> float:
    """Twice the variance of log times that the means of devices and entries do not explain: that of a log ratio."""
    table = np.array(logs)
    if len(logs) < _FEWEST or len(logs[0]) < 2:
        return 0.0
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    freedom = (len(logs) - 1) * (len(logs[0]) - 1)
    return 2 * float((left**2).sum()) / freedom
