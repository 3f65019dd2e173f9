"""Sessions: a worker's inputs, references and rotating copies of one problem, kept between trials."""

from __future__ import annotations

import collections
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...arguments.inputs import call_bytes
from ...arguments.schema import tensors_in, with_tensors
from ...artifact import Artifact
from ...contract import Op
from ...correctness.bounds import Bounds, bounds_of, holding
from ...correctness.numerics import Comparison, judged, own_error, reference64
from ...correctness.tolerance_check import refuse_unseen
from ...device import Device
from ...dispatch.plans.other_size import bound_by_call
from ...dispatch.plans.plan import Candidate, Plan
from ...errors import RegistryError
from ...faults.device_faults import out_of_memory
from ...implementation import Tensors
from ...problem import Arguments, Problem
from ..measure.protocol import TimingProtocol
from ..measure.rotation import Rotation
from ..measure.samplers import copies_at_hand, has_warm_copy
from ..planning.twin import twin_of
from ..planning.variants import variants_at
from .other_draws import AlikeDraws

PARTLY, PARTLY_AGAIN = "partly other", "partly other again"
"""Kinds of inputs for checks after timing: the timed inputs with a few changed elements, other ones in each kind.

A candidate that recognises inputs by some elements may look at a changed element once, but hardly twice.
"""

_MIXTURES = (PARTLY, PARTLY_AGAIN)

_OTHER_PART = 1 / 64
"""The part of the elements that is changed: so small that a candidate which remembers results by some elements of the
inputs finds them unchanged; so large that every output which sums over inputs differs by more than its tolerance."""

_CACHE_SHARE = 0.35
"""Part of the device's memory that the cases of one problem may keep between trials."""

_MOST_SESSIONS = 64
"""As many as the problems whose finals are held together: they begin in the process that has searched all of them."""

_BOUNDS_SHARE = 0.5
"""Part of the device's memory that the bounds of one problem may keep, where its inputs are too large to be kept."""

_FIRST_SEED, _SEEDS = 10, 1 << 20


def most_sessions() -> int:
    """How many problems' sessions a worker keeps at most."""
    return _MOST_SESSIONS


@dataclass(frozen=True)
class InputCase:
    """One kind of inputs, and the bounds within which an answer is right. ``pristine`` is never handed out."""

    kind: str
    values: tuple[Any, ...]
    pristine: tuple[Any, ...]
    bounds: tuple[Bounds, ...]

    @property
    def nbytes(self) -> int:
        tensors = tensors_in((*self.values, *self.pristine))
        return sum(tensor.nbytes for tensor in tensors) + sum(bounds.nbytes for bounds in self.bounds)


class Session:
    """One problem on one device. Cases are drawn from ``seed`` and kept while they are small enough."""

    def __init__(self, op: Op, problem: Problem, device: Device, protocol: TimingProtocol, seed: int) -> None:
        self.op = op
        self.problem = problem
        self.device = device
        self.protocol = protocol
        self._seed = seed
        self._cases: dict[str, InputCase] = {}
        self._bounds: dict[str, tuple[Bounds, ...]] = {}
        self._values: dict[str, tuple[Any, ...]] = {}
        """Inputs that are kept without a reference, by kind, until their case is made."""
        self._mixable: bool | None = None
        self._others: dict[tuple[int, ...], AlikeDraws] = {}
        """Arguments of other draws, by their places."""
        refuse_unseen(op, problem, device.torch)

    @property
    def timed_kind(self) -> str:
        return self.op.kinds[0]

    def case(self, kind: str) -> InputCase:
        """Inputs of a kind, one of the op's, ``PARTLY`` or ``PARTLY_AGAIN``, with their bounds; equal at every call."""
        if kind in self._cases:
            return self._cases[kind]
        case = self._partly_other(kind) if kind in _MIXTURES else self._make(kind, self._drawn(kind))
        if self.is_roomy:
            self._cases[kind] = case
            self._values.pop(kind, None)
        return case

    def case_of(self, values: tuple[Any, ...]) -> InputCase:
        """The case of inputs that are used once. Nothing of it is kept."""
        return self._make("", values)

    def judge(self, case: InputCase, results: Tensors) -> str:
        """The fault of a case's results (``Op.results``), found element by element; "" when they are right."""
        if all(holding(case.bounds, results)):
            return ""
        return self.compared(case, results).message

    def compared(self, case: InputCase, results: Tensors) -> Comparison:
        """The results of a case against its reference, element by element."""
        return judged(self.op, self.problem, results, case.pristine)

    def _make(self, kind: str, values: tuple[Any, ...], reference: Tensors | None = None) -> InputCase:
        bounds = self._bounds.get(kind)
        if bounds is None:
            reference = reference64(self.op, values) if reference is None else reference
            error = own_error(self.op, self.problem, values, reference)
            bounds = bounds_of(self.op, self.problem, values, reference, error)
            self._keep(kind, bounds)
        # inputs that are never handed to a candidate need no second copy
        pristine = clone(values) if kind in self.op.kinds else values
        return InputCase(kind, values, pristine, bounds)

    def _keep(self, kind: str, bounds: tuple[Bounds, ...]) -> None:
        """Keep the bounds of a problem whose inputs are too large to be kept.

        Drawing the inputs again takes a hundredth of the time of computing the bounds.
        """
        held = sum(each.nbytes for kept in (*self._bounds.values(), bounds) for each in kept)
        if kind and not self.is_roomy and held <= _BOUNDS_SHARE * self.device.memory_bytes:
            self._bounds[kind] = bounds

    def _drawn(self, kind: str, again: int = 0) -> tuple[Any, ...]:
        generator = torch.Generator(device=self.device.torch)
        generator.manual_seed(self._seed + self.op.kinds.index(kind) + 1_000_003 * again)
        return self.op.draw(self.problem, kind, generator)

    def _partly_other(self, kind: str) -> InputCase:
        """The timed inputs with a few numbers of another draw; of the other draw where elements depend on each other.

        All tensors are of the other draw where the op's reference of the mixture fails or is not finite.
        """
        number = _MIXTURES.index(kind)
        values, others = self._drawn(self.timed_kind), self._drawn(self.timed_kind, again=1 + number)
        # a seed of its own: the places of changed numbers must not depend on the numbers
        generator = torch.Generator(device=self.device.torch).manual_seed(self._seed + 2_000_003)
        mixed = tuple(
            _mixed_value(value, other, generator, number, independent=place in self.independent)
            for place, (value, other) in enumerate(zip(values, others, strict=True))
        )
        reference = self._reference_of_mixture(mixed) if self._mixable is None else None
        return self._make(kind, mixed if self._mixable else others, reference)

    @property
    def is_mixable(self) -> bool:
        """Whether the op makes sense of inputs of which some numbers are replaced by those of another draw."""
        if self._mixable is None:
            # the twin of a problem whose reference takes long decides for it
            if self.twin is None:
                self.case(PARTLY)
            else:
                self._mixable = Session(self.op, self.twin, self.device, self.protocol, self._seed).is_mixable
        return bool(self._mixable)

    @property
    def other_case(self) -> InputCase:
        """Inputs beside those that are timed, for calls that run at once; their bounds are known to verification."""
        return self.case(self.op.kinds[1] if self.is_roomy and self.twin is None and self.op.kinds[1:] else PARTLY)

    @cached_property
    def twin(self) -> Problem | None:
        return twin_of(self.op, self.problem)

    def _reference_of_mixture(self, mixed: tuple[Any, ...]) -> Tensors | None:
        """The reference of the mixture, None where it fails or is not finite; ``_mixable`` remembers which."""
        self._mixable = False
        try:
            reference = reference64(self.op, mixed)
        except Exception as fault:  # an op may raise anything for inputs that contradict each other
            if out_of_memory(fault):
                self._mixable = None
                raise
            return None
        self._mixable = all(bool(output.isfinite().all()) for output in reference)
        return reference if self._mixable else None

    def bound(self, candidate: Candidate, artifacts: Mapping[str, Artifact]) -> Plan | None:
        """A candidate's plan for the problem, from artifacts by variant key.

        None where the candidate does not support the problem, or needs a variant that is not among the artifacts.
        """
        try:
            wanted = variants_at(self.op, candidate, self.problem, self.arguments, self.device)
            if wanted is None or any(variant.key not in artifacts for variant in wanted):
                return None
            return bound_by_call(self.op, candidate, self.problem, self.arguments, self.device, artifacts)
        except RegistryError:
            return None

    @cached_property
    def arguments(self) -> Arguments:
        """Specs of the inputs."""
        timed = self._cases.get(self.timed_kind)
        return self.op.arguments(timed.values if timed else self._drawn(self.timed_kind))

    @cached_property
    def rotation(self) -> Rotation:
        """The copies that are timed in turn, last the one for ``warms``; ``show`` says which inputs they hold."""
        values = self.values(self.timed_kind)
        count = copies_at_hand(self.working_set, self.protocol, self.device.memory_bytes)
        rotation = Rotation(values, count + self.warms, self.independent)
        rotation.show(self.timed_kind, values)
        return rotation

    @cached_property
    def warms(self) -> bool:
        """Whether the last of the rotating copies is for launches that warm up, and no other launch uses it."""
        return has_warm_copy(self.working_set, self.protocol)

    def show(self, kind: str) -> None:
        """Let the rotating copies hold inputs of that kind."""
        self.rotation.show(kind, self.values(kind))

    def values(self, kind: str) -> tuple[Any, ...]:
        """Inputs of that kind; their reference is not computed unless the case is kept anyway."""
        if kind in self._cases or kind in _MIXTURES:
            return self.case(kind).pristine
        if not self.is_roomy:
            return self._drawn(kind)
        # each entrant of the finals is timed on them
        if kind not in self._values:
            self._values[kind] = self._drawn(kind)
        return self._values[kind]

    @cached_property
    def mutated(self) -> tuple[int, ...]:
        """Places of the arguments that the op writes to."""
        return tuple(place for place, parameter in enumerate(self.op.parsed.parameters) if parameter.mutated)

    @cached_property
    def independent(self) -> tuple[int, ...]:
        """Places of the arguments whose elements the op says to be independent of each other."""
        return tuple(place for place, name in enumerate(self.op.parsed.names) if name in self.op.independent)

    def fixed(self, places: Iterable[int]) -> tuple[int, ...]:
        """The places, of some, of tensors that no change of single elements fits: integers, maybe indices or codes.

        Of an op that makes no sense of mixed inputs, all.
        """
        values = self.values(self.timed_kind)
        return tuple(
            place
            for place in places
            if (tensors := [each for each in tensors_in((values[place],)) if each.numel()])
            and not (self.is_mixable and all(each.is_floating_point() or place in self.independent for each in tensors))
        )

    def other_draws(self, places: tuple[int, ...]) -> Iterator[Mapping[int, Any]]:
        """The arguments at some places of other draws of the inputs, on which a call may take as long as on these.

        There are none where inputs take too much memory to be kept.
        """
        if not (places and self.is_roomy):
            return iter(())
        if places not in self._others:
            values = self.values(self.timed_kind)
            self._others[places] = AlikeDraws({place: values[place] for place in places}, self._drawn_again)
        return iter(self._others[places])

    def _drawn_again(self) -> tuple[Any, ...]:
        return self._drawn(self.timed_kind, again=_FIRST_SEED + secrets.randbelow(_SEEDS))

    @cached_property
    def unmutated(self) -> tuple[int, ...]:
        """Places of the arguments that the op must not change."""
        return tuple(place for place in range(len(self.op.parsed.parameters)) if place not in self.mutated)

    @cached_property
    def is_roomy(self) -> bool:
        """Whether there is memory to keep the cases of one trial for the next."""
        results = self.op.result_specs(self.arguments, self.device.torch)
        elements = sum(spec.numel for spec in results)
        case = 2 * sum(spec.nbytes for spec in self.arguments.tensors.values()) + 8 * elements
        return case * (len(self.op.kinds) + len(_MIXTURES)) <= _CACHE_SHARE * self.device.memory_bytes

    @property
    def nbytes(self) -> int:
        """Bytes that are held: cases, inputs, bounds and, once they are made, the rotating copies."""
        bounds = sum(each.nbytes for kept in self._bounds.values() for each in kept)
        rotation = self.__dict__.get("rotation")
        copies = rotation.nbytes if isinstance(rotation, Rotation) else 0
        values = sum(tensor.nbytes for kept in self._values.values() for tensor in tensors_in(kept))
        others = sum(each.nbytes for each in self._others.values())
        return copies + values + bounds + others + sum(case.nbytes for case in self._cases.values())

    @cached_property
    def working_set(self) -> int:
        """Bytes of one copy's arguments and outputs."""
        outputs = self.op.output_specs(self.arguments, self.device.torch)
        return sum(spec.nbytes for spec in [*self.arguments.tensors.values(), *outputs.values()])


class Sessions:
    """The latest few sessions of a worker; older ones are dropped, with their tensors."""

    # a problem whose tensors take more than this part of the memory has the device for itself: its float64
    # references take another four times as much
    _huge_share = 0.02

    def __init__(self, catalog_op: Callable[[str], Op], device: Device, kind: type[Session] = Session) -> None:
        self._op = catalog_op
        self._kind = kind
        self._device = device
        self._sessions: collections.OrderedDict[tuple[str, int], Session] = collections.OrderedDict()

    def get(self, op: str, dims: dict[str, Any], protocol: TimingProtocol, seed: int) -> Session:
        """The session of a problem, made at the first call. A huge problem first drops all but its twin's."""
        found = self._op(op)
        problem = found.problem_of(dims)
        key = (problem.key, seed)
        if key not in self._sessions:
            if call_bytes(found, problem) > self._huge_share * self._device.memory_bytes:
                self.keep_only(problem)
            while len(self._sessions) >= _MOST_SESSIONS or (self._sessions and self._is_full()):
                self._sessions.popitem(last=False)
            self._sessions[key] = self._kind(found, problem, self._device, protocol, seed)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _is_full(self) -> bool:
        held = sum(session.nbytes for session in self._sessions.values())
        return held > max(_CACHE_SHARE, _BOUNDS_SHARE) * self._device.memory_bytes

    def keep_only(self, problem: Problem) -> bool:
        """Drop the sessions of all but a problem, its twin, and problems of which one of both is the twin.

        Returns True if there was one.
        """
        twin = twin_of(self._op(problem.op), problem)
        kept = {problem} if twin is None else {problem, twin}
        others = [key for key, one in self._sessions.items() if kept.isdisjoint((one.problem, one.twin))]
        for key in others:
            del self._sessions[key]
        return bool(others)

    def drop(self, problem: Problem) -> None:
        """Forget one problem's tensors, e.g. because a candidate may have written to them."""
        for key in [key for key in self._sessions if key[0] == problem.key]:
            del self._sessions[key]

    def clear(self) -> None:
        """Drop all, e.g. after the device ran out of memory."""
        self._sessions.clear()


def clone(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of the arguments at other addresses; values that are no tensors as they are."""
    return with_tensors(values, torch.clone)


def _mixed_value(value: Any, other: Any, generator: torch.Generator, number: int, *, independent: bool) -> Any:
    """An argument whose tensors are ``_mixed``, if they are floating or have independent elements, else ``other``."""
    others = iter(tensors_in((other,)))

    def mixed(tensor: torch.Tensor) -> torch.Tensor:
        is_mixed = (tensor.is_floating_point() or independent) and tensor.numel() > 0
        return _mixed(tensor, next(others), generator, number) if is_mixed else next(others)

    return with_tensors((value,), mixed)[0]


def _mixed(value: torch.Tensor, other: torch.Tensor, generator: torch.Generator, number: int) -> torch.Tensor:
    """``value`` with some elements of ``other``; for one state of the generator each ``number`` takes other
    elements."""
    drawn = torch.rand(value.shape, device=value.device, generator=generator)
    taken = (drawn >= number * _OTHER_PART) & (drawn < (number + 1) * _OTHER_PART)
    # at least one: a small tensor may have been spared
    place = torch.randint(value.numel(), (1,), device=value.device, generator=generator)
    taken.view(-1)[(place + number) % value.numel()] = True
    return torch.where(taken, other, value)
