"""A race behind bubblewrap: every entrant in sandboxes of its own, verified and timed from outside, one at a time."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tuning_db import Store, TuningDBError

from ..contract import Op
from ..device import Device
from ..discovery import answers
from ..discovery.catalog import Catalog
from ..errors import InvalidArgumentError
from ..paths import expanded, resolved
from ..problem import Problem, canonical_json
from ..sandbox.bubblewrap import bubblewrap
from ..sandbox.entrant import SandboxedEntrant
from ..sandbox.limits import SandboxLimits
from ..sandbox.probing import SandboxedProbes
from ..sandbox.trial import SandboxedSession, SandboxedTrial, sandboxed_protocol, trial
from ..space import Config
from .detection import ImportedProblem
from .plugin_file import ForeignKernel, plugin_text
from .race import RaceStanding, interval_of_median, ranked

MEASURE_S = 3.0
"""Seconds in which samples of one entrant are taken, each time that it is timed."""
_BLOCKS = 2
"""Fresh sandboxes in which those that may win are timed again, in shuffled order."""
_MAY_WIN = 1.5
_SEEDS = 1 << 31
_BESIDE = frozenset({".py", ".yml", ".yaml", ".json", ".h", ".hpp", ".cuh"})
"""Suffixes of what a problem file may read beside itself."""


@dataclass
class _Entered:
    """An entrant of one problem with its trials."""

    label: str
    entrant: SandboxedEntrant
    is_submission: bool
    trials: list[SandboxedTrial] = field(default_factory=list)

    @property
    def first(self) -> SandboxedTrial:
        return self.trials[0]

    @property
    def fault(self) -> SandboxedTrial | None:
        return next((one for one in self.trials if one.outcome.status != "ok"), None)

    @property
    def times(self) -> list[float]:
        """Times in µs of the entrant's blocks, or of its first trial where it was in no block."""
        return [us for one in self.trials[1:] or self.trials for us in one.outcome.samples]


class SandboxedRace:
    """What a race in sandboxes needs. ``submissions`` are implementations of ``op`` in ``catalog``, by plugin text.

    ``problem``: the file that defines the op; None for an op that was there. ``observe`` is told of each trial: the
    entrant's label and the trial. Raises SandboxError where there is no sandbox on this machine.
    """

    def __init__(
        self,
        op: Op,
        problem: ImportedProblem | None,
        submissions: Sequence[ForeignKernel],
        catalog: Catalog,
        device: Device,
        limits: SandboxLimits | None = None,
        *,
        seconds: float = MEASURE_S,
        observe: Callable[[str, SandboxedTrial], None] = lambda *_: None,
    ) -> None:
        bubblewrap()
        self._op = op
        self._problem = problem
        self._submissions = submissions
        self._catalog = catalog
        self._device = device
        self._limits = limits or SandboxLimits()
        self._probes = SandboxedProbes(device)
        self._seconds = seconds
        self._observe = observe

    def held(self, problems: Sequence[Problem], refused: Mapping[str, str]) -> list[RaceStanding]:
        """The standings on each problem; ``refused``: why files are no submissions, by label."""
        if not problems:
            raise InvalidArgumentError(
                "race: no problem", hint="give --shapes FILE, or a problem file that tells sizes"
            )
        standings: list[RaceStanding] = []
        with tempfile.TemporaryDirectory(prefix="race-") as folder:
            for problem in problems:
                standings += self._on(problem, Path(folder))
        return [*standings, *(RaceStanding(None, label, label, True, "refused", why) for label, why in refused.items())]

    def _on(self, problem: Problem, folder: Path) -> list[RaceStanding]:
        protocol = sandboxed_protocol(self._device, self._seconds * 1e6)
        # no entrant can have met these inputs before
        session = SandboxedSession(self._op, problem, self._device, protocol, secrets.randbelow(_SEEDS))
        entries, out = self._entries(problem, folder)
        for entry in entries:
            self._try(entry, session, judged=True)
        right = [entry for entry in entries if entry.fault is None]
        best = min((entry.first.outcome.median_us or 0.0 for entry in right), default=0.0)
        finalists = [each for each in right if self._is_finalist(each, best)]
        for _ in range(_BLOCKS):
            for entry in Random(secrets.randbits(64)).sample(finalists, len(finalists)):
                self._try(entry, session, judged=False)
        standings = [*(_standing(problem, entry) for entry in entries), *out]
        return ranked(standings, self._op.baseline, None, _over_reference(entries, self._op.baseline))

    def _is_finalist(self, entry: _Entered, best_us: float) -> bool:
        median_us = entry.first.outcome.median_us or 0.0
        return median_us <= _MAY_WIN * best_us or entry.entrant.name == self._op.baseline

    def _try(self, entry: _Entered, session: SandboxedSession, *, judged: bool) -> None:
        if entry.fault is None:
            examine = self._probes.check_everywhere
            found = trial(entry.entrant, session, self._limits, judged=judged, examine=examine)
            entry.trials.append(found)
            self._observe(entry.label, found)

    def _entries(self, problem: Problem, folder: Path) -> tuple[list[_Entered], list[RaceStanding]]:
        """The entrants, and the standings of implementations that do not run this problem here."""
        configs, entries, out = self._tuned(problem), list[_Entered](), list[RaceStanding]()
        labels = {one.name: one for one in self._submissions}
        for one in self._catalog.implementations(self._op.name):
            if one.name in labels:
                kernel = labels[one.name]
                entries.append(_Entered(kernel.label, self._foreign(one.name, [kernel], folder), True))
            elif self._device.type in one.device_types:
                reasons = "; ".join(answers.refusals(one, problem, self._device))
                if reasons:
                    out.append(RaceStanding(problem, one.name, one.name, False, "unsupported", reasons))
                    continue
                own = self._problem is not None and one.name == self._op.baseline
                config = configs.get(one.name)
                if config is not None and config not in one.space(problem, self._device):
                    config = None
                made = SandboxedEntrant.installed(one, self._catalog, config)
                entries.append(_Entered(one.name, self._foreign(one.name, [], folder) if own else made, False))
        return entries, out

    def _foreign(self, name: str, kernels: Sequence[ForeignKernel], folder: Path) -> SandboxedEntrant:
        plugin = folder / f"{secrets.token_hex(8)}.py"
        plugin.write_text(plugin_text(self._op.name, self._problem, kernels))
        others = {Path(one.path) for one in self._submissions if one not in kernels}
        files = [*map(files_of, kernels)]
        search: list[Path] = []
        if self._problem is not None:
            here, *more = search = list(self._problem.source.folders)
            # of folders above, which may be anybody's, only what the problem may import
            beside = [*_beside(here), *(each for place in more for each in _beside(place) if each.suffix == ".py")]
            files += [each for each in beside if each not in others]
            files.append(self._problem.file.path)
        return SandboxedEntrant(self._op.name, name, plugin, files=files, search=search)

    def _tuned(self, problem: Problem) -> dict[str, Config]:
        """Configurations that won this problem on this hardware, by implementation."""
        found: dict[str, Config] = {}
        with contextlib.suppress(TuningDBError), Store.open(None, create=False, migrate=False) as store:
            hardware = self._device.hardware()
            for winner in store.winners(op=self._op.name, op_version=self._op.version, hardware=hardware):
                if canonical_json(dict(winner.problem.dims)) == canonical_json(dict(problem.dims)):
                    found.setdefault(winner.candidate.implementation, winner.candidate.config)
        return found


def _over_reference(entries: Sequence[_Entered], baseline: str) -> dict[str, float]:
    """Times as multiples of the reference's, by name: those of the blocks, or of the trials if it was in no block.

    Blocks and trials are minutes apart, in which a busy machine may have become another.
    """
    valid = [each for each in entries if each.fault is None]
    reference = next((each for each in valid if each.entrant.name == baseline), None)
    if reference is None:
        return {}
    found = {}
    for each in valid:
        own, other = (one.times if len(each.trials) > 1 else one.first.outcome.samples for one in (each, reference))
        found[each.entrant.name] = statistics.median(own) / statistics.median(other)
    return found


def files_of(kernel: ForeignKernel) -> Path:
    """The file of a submission, or the folder of its package."""
    place = Path(kernel.path)
    return place if place.is_file() else Path(kernel.path.rpartition(":")[0])


def fit_for_sandboxes(
    found: Sequence[ForeignKernel], given: Sequence[str]
) -> tuple[list[ForeignKernel], dict[str, str]]:
    """The submissions that a sandbox can show, with absolute paths, and why others cannot run there, by label."""
    kept: list[ForeignKernel] = []
    refused: dict[str, str] = {}
    roots = [Path(path).resolve() for path in given]
    for one in found:
        place = Path(one.path)
        if place.is_file():
            if not any(root == place or root in place.parents for root in roots):
                refused[one.label] = f"it is a link to {place}, outside of the folder that was given"
                continue
            kept.append(one)
            continue
        folder, _, function = one.path.rpartition(":")
        if expanded(folder).is_dir():
            kept.append(replace(one, path=f"{resolved(folder)}:{function}"))
        else:
            refused[one.label] = "a sandbox has no network: download the package, and give FOLDER:function"
    return kept, refused


def _beside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(each for each in folder.iterdir() if each.suffix in _BESIDE and each.is_file())
    return []


def _standing(problem: Problem, entry: _Entered) -> RaceStanding:
    made = RaceStanding(problem, entry.entrant.name, entry.label, entry.is_submission, "ok")
    if entry.fault is not None:
        return replace(made, status=entry.fault.outcome.status, reason=entry.fault.outcome.message)
    times = entry.times
    low, high = interval_of_median(times)
    return replace(
        made, median_us=statistics.median(times), low_us=low, high_us=high, in_finals=len(entry.trials) > 1
    )  # fmt: skip
