"""The searches of several problems at once: ask, compile, feed the devices, learn. One thread, one event loop."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...artifact import Artifact, Variant
from ...device import Device
from ...dispatch.plans.plan import Candidate
from ..events import Note, Observer, ProblemStarted, TrialDone
from ..jobs import PROBED, UNTESTED, Entrant, Failed, Outcome, TrialJob
from ..measure.protocol import TimingProtocol
from ..planning.problems import ProblemPlan
from ..storing import RunStore
from ..verify.probe_inputs import group_of
from ..workers.crew import Crew
from ..workers.tuned_device import TunedDevice
from .findings import Finding
from .resources import misfit
from .state import SearchState
from .waiting import Waiting

_ACTIVE_PROBLEMS = 6
"""The most problems that are searched at once on each device."""
_IN_FLIGHT = 8
_ENOUGH_READY = 4
"""While this many candidates wait for a device no other is asked for: later proposals know more trials."""
_REMEMBERED = 512
"""The most built candidates that are kept to be offered to other problems."""

Begin = Callable[[ProblemPlan, Sequence[SearchState]], SearchState]
"""Makes a problem's search, given the searches that are over: the winners of its neighbours are its seeds."""

OutOfTime = Callable[[Sequence[SearchState], Sequence[SearchState]], bool]
"""Returns whether searches must end now, given the searches that are over and those that go on."""


@dataclass(frozen=True)
class _Ready:
    """A job for the device; without a candidate it times the copy floor.

    ``shared``: another problem's search asked for the candidate.
    """

    search: SearchState
    candidate: Candidate | None
    job: TrialJob
    shared: bool = False


class SearchLoop:
    """Searches problems, several at a time, so that the devices have work while variants compile.

    A problem is searched on one device, which makes its inputs and references once. A device that may have more
    searches begins the next one, if it can of a problem that shares probes with one that it has had. When no problem is
    left, a device without a search takes one over from another.
    """

    def __init__(
        self, crew: Crew, device: Device, protocol: TimingProtocol, store: RunStore, observe: Observer
    ) -> None:
        self._crew = crew
        self._device = device
        self._protocol = protocol
        self._store = store
        self._observe = observe
        self._active: list[SearchState] = []
        self._place: dict[SearchState, TunedDevice] = {}
        """The device on which each active search tries its candidates."""
        self._group_on: dict[str, TunedDevice] = {}
        """The device that has begun the first problem of a group that shares probes."""
        self._ready: collections.deque[_Ready] = collections.deque()
        self._sent: dict[int, tuple[_Ready, TunedDevice]] = {}
        self._built: collections.deque[tuple[Waiting, tuple[Artifact, ...]]] = collections.deque(maxlen=_REMEMBERED)
        self._offered: set[tuple[int, str]] = set()
        self._noted: set[str] = set()
        self.trials = 0
        self._hear_at = 0.0

    def run(
        self, plans: Sequence[ProblemPlan], begin: Begin, out_of_time: OutOfTime = lambda *_: False
    ) -> list[SearchState]:
        """Search all problems; returns the searches in the order in which they ended.

        When it is ``out_of_time`` the searches that have begun are ended, and the other problems are left out.
        """
        queue = collections.deque(plans)
        over: list[SearchState] = []
        while queue or self._active:
            if out_of_time(over, self._active):
                queue.clear()
                for search in self._active:
                    search.stop()
            while queue and len(self._on(device := self._least_busy())) < _ACTIVE_PROBLEMS:
                self._begin(begin(self._next(queue, device), over), device)
            if not queue:
                self._take_over()
            self._advance()
            for search in [search for search in self._active if search.over]:
                self._active.remove(search)
                del self._place[search]
                search.close()
                over.append(search)
                self._cancel_compiling()
        return over

    def _cancel_compiling(self) -> None:
        """Drop variants from the compilers' queue that no search which goes on is waiting for."""
        waiting = [one for search in self._active for one in search.waiting]
        self._crew.compiler.keep_only({variant.key for one in waiting for variant in (*one.variants, *one.extra)})

    def build(self, searches: Sequence[SearchState]) -> None:
        """Compile the candidates that may enter the finals and were measured by an earlier run alone.

        A candidate that fails to compile is left out of the finals.
        """
        left = [(search, waiting) for search in searches for waiting in search.unbuilt()]
        while left:
            left = [(search, waiting) for search, waiting in left if not self._is_settled(search, waiting)]
            if left:
                self._wait()

    def _is_settled(self, search: SearchState, waiting: Waiting) -> bool:
        results = self._results(waiting, waiting.variants)
        if not all(results):
            return False
        search.findings.remember(waiting.candidate, _artifacts(results))
        return True

    def _on(self, device: TunedDevice) -> list[SearchState]:
        return [search for search in self._active if self._place[search] is device]

    def _least_busy(self) -> TunedDevice:
        return min(self._crew.devices, key=lambda device: len(self._on(device)))

    def _next(self, queue: collections.deque[ProblemPlan], device: TunedDevice) -> ProblemPlan:
        """Take from the queue the next problem for a device: of a group that it has begun, else that nobody has.

        Problems of a group share probes, whose inputs and references each worker makes for itself.
        """
        groups = [group_of(plan.op, plan.problem) for plan in queue] if len(self._crew.devices) > 1 else []
        owners = [self._group_on.get(group) for group in groups]
        wanted = next((owner for owner in (device, None) if owner in owners), None)
        place = owners.index(wanted) if wanted in owners else 0
        if groups:
            self._group_on.setdefault(groups[place], device)
        plan = queue[place]
        del queue[place]
        return plan

    def _take_over(self) -> None:
        """Move a search from the device that has the most to one without any, if the former keeps another."""
        idle, most = self._least_busy(), max(self._crew.devices, key=lambda device: len(self._on(device)))
        if not self._on(idle) and len(self._on(most)) > 1:
            self._place[self._on(most)[-1]] = idle

    def _begin(self, search: SearchState, device: TunedDevice) -> None:
        self._active.append(search)
        self._place[search] = device
        self._send_off(search, None, Entrant("", {}, (), "floor"))
        self._observe(ProblemStarted(search.plan.problem, search.candidates, None))

    def _advance(self) -> None:
        """One turn: ask for candidates, compile them, feed the device, wait for the first answer."""
        self._store.write_due()
        self._hear()
        self._place_anew()
        for search in self._active:
            if sum(self._is_at(ready, self._place[search]) for ready in self._ready) < _ENOUGH_READY:
                search.ask(_IN_FLIGHT)
            search.drop_moot()
            for waiting in list(search.waiting):
                self._push(search, waiting)
        self._feed()
        if self._sent or not self._crew.compiler.idle:
            self._wait()

    def _wait(self) -> None:
        """Wait until a child has something to say, and learn the trials that were answered."""
        try:
            self._crew.wait()
        finally:  # also when Ctrl-C ends the wait: what was measured is stored
            for job, outcome in self._crew.take_answered():
                self._answered(job, outcome)

    def _hear(self) -> None:
        """Learn the trials that other runs on this database have stored meanwhile: they need not be repeated."""
        now = time.monotonic()
        if now < self._hear_at:
            return
        self._hear_at = now + self._store.hear_every_s
        if self._store.has_news():
            for search in self._active:
                for candidate, trial in self._store.news(search.plan):
                    search.learn_stored(Finding(candidate, trial.status, trial.median_us, trial.censored, trial.uid))

    def _push(self, search: SearchState, waiting: Waiting) -> None:
        """Queue the candidate for the device if all its variants are built, drop it if one failed."""
        failure = Failed("error", waiting.fault) if waiting.fault else None
        failure = Failed("out_of_resources", waiting.misfit) if waiting.misfit else failure
        results, extra = self._results(waiting, waiting.variants), self._results(waiting, waiting.extra)
        failure = failure or next((result for result in results if isinstance(result, Failed)), None)
        if failure is None and all(results):
            failure = self._misfit(search, waiting.candidate, _artifacts(results))
        if failure is not None:
            search.waiting.remove(waiting)
            self._learn(search, waiting.candidate, Outcome(failure.status, failure.message))
        elif all((*results, *extra)):
            artifacts, candidate = _artifacts(results), waiting.candidate
            search.findings.remember(candidate, artifacts)
            search.waiting.remove(waiting)
            self._built.append((waiting, artifacts))
            entrant = search.findings.entrant(candidate)
            self._send_off(search, candidate, replace(entrant, artifacts=(*artifacts, *_artifacts(extra))))

    def _misfit(self, search: SearchState, candidate: Candidate, artifacts: tuple[Artifact, ...]) -> Failed | None:
        """Why the candidate cannot run, None if it can. A candidate that must be tried may spill registers."""
        if search.findings.must_try(candidate):
            artifacts = tuple(replace(one, resources={**one.resources, "spill_bytes": 0}) for one in artifacts)
        reason = misfit(artifacts, self._device)
        return Failed("out_of_resources", reason) if reason else None

    def _results(self, waiting: Waiting, variants: Sequence[Variant]) -> list[Artifact | Failed | None]:
        implementation = waiting.candidate.implementation
        want, target = self._crew.compiler.want, self._device.target
        return [want(implementation.op, implementation.name, variant, target) for variant in variants]

    def _send_off(
        self, search: SearchState, candidate: Candidate | None, entrant: Entrant, *, shared: bool = False
    ) -> None:
        search.on_device += 1
        plan, number = search.plan, self._crew.next_job()
        dims, protocol = dict(plan.problem.dims), dict(self._protocol.details)
        job = TrialJob(number, plan.op.name, dims, entrant, protocol, search.findings.seed)
        self._ready.append(_Ready(search, candidate, job, shared))

    def _place_anew(self) -> None:
        """Move the searches of a device that has failed to others, with the trials that it leaves undone."""
        for search, device in self._place.items():
            if device not in self._crew.devices:
                self._place[search] = self._least_busy()
        self._ready.extendleft(self._sent.pop(job.id)[0] for job in reversed(self._crew.take_returned()))

    def _is_at(self, ready: _Ready, device: TunedDevice) -> bool:
        return self._place[ready.search] is device

    def _feed(self) -> None:
        """Keep the devices busy; on a CPU measure only while nothing compiles, since both want the same cores."""
        if self._device.type == "cuda" or self._crew.compiler.idle:
            for device in self._crew.devices:
                self._feed_one(device)

    def _feed_one(self, device: TunedDevice) -> None:
        worker = device.worker
        assert worker is not None
        while worker.wants_more:
            ready = next((ready for ready in self._ready if self._is_at(ready, device)), None)
            if ready is None:
                if worker.idle and self._share(device):
                    continue
                return
            self._ready.remove(ready)
            if ready.candidate is not None and ready.search.is_moot(ready.candidate):
                ready.search.on_device -= 1
                continue
            self._sent[ready.job.id] = ready, device
            self._crew.submit(replace(ready.job, best_us=ready.search.findings.best_us), device)

    def _share(self, device: TunedDevice) -> bool:
        """While compilers are busy, queue a candidate that was built for another problem; False if none is wanted."""
        if self._crew.compiler.idle:
            return False
        for built, artifacts in reversed(self._built):
            for search in self._on(device):
                place = (search.findings.seed, built.candidate.key)
                if place in self._offered:
                    continue
                self._offered.add(place)
                if self._misfit(search, built.candidate, artifacts) is not None:
                    continue  # a default or stored winner may spill on its own problem, not on another's
                own = search.serve(built)
                if own is not None:
                    search.findings.remember(own.candidate, artifacts)
                    self._send_off(search, own.candidate, search.findings.entrant(own.candidate), shared=True)
                    return True
        return False

    def _answered(self, job: TrialJob, outcome: Outcome) -> None:
        ready, device = self._sent.pop(job.id)
        search = ready.search
        search.on_device -= 1
        search.seconds += outcome.seconds
        if ready.candidate is None:
            search.findings.floor_us = outcome.median_us
        else:
            self._learn(search, ready.candidate, outcome, shared=ready.shared, device=device.device.label)

    def _learn(
        self, search: SearchState, candidate: Candidate, outcome: Outcome, *, shared: bool = False, device: str = ""
    ) -> None:
        plan = search.plan
        if resources := search.findings.resources(candidate):
            outcome = replace(outcome, details={**outcome.details, "resources": resources})
        stored = self._store.trial(plan, candidate, outcome)
        probed = outcome.details.get(PROBED) is True
        told = Finding(candidate, stored.status, stored.median_us, stored.censored, stored.uid, stored.message, probed)
        search.learn(told, asked=not shared)
        search.findings.took(outcome.details.get("seconds", {}))
        self._note(outcome)
        self.trials += 1
        self._observe(
            TrialDone(
                plan.problem,
                candidate.implementation.name,
                candidate.config,
                stored.status,
                stored.message,
                stored.median_us,
                search.done,
                search.candidates,
                search.findings.best_us,
                search.findings.floor_us,
                search.seconds_left,
                device,
            )
        )

    def _note(self, outcome: Outcome) -> None:
        """Tell what verification could not test; a message that was told is not repeated."""
        told = str(outcome.details.get(UNTESTED, ""))
        if told and told not in self._noted:
            self._noted.add(told)
            self._observe(Note(told))


def _artifacts(results: Sequence[Artifact | Failed | None]) -> tuple[Artifact, ...]:
    return tuple(result for result in results if isinstance(result, Artifact))
