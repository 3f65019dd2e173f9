"""A plan on the rotating copies: its timed launches, and their outputs, which are judged afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, pairwise
from time import perf_counter
from typing import Any

import torch

from ...arguments.schema import handed_out, tensors_in
from ...contract import as_tuple
from ...correctness.bits import having_same_bits
from ...correctness.bounds import holding
from ...correctness.output_faults import output_faults, overlap, plain_fault, poison
from ...dispatch.plans.plan import Plan
from ...implementation import Tensors
from ..measure.device_samplers import flushes_of
from ..measure.samplers import Enqueue
from ..measure.secret_elements import FlippedElements
from ..measure.spread_elements import OfReturned, OfStack, SpreadElements
from ..measure.stack import Stack
from .between_mutations import BetweenMutations
from .between_samples import LATE, BetweenSamples
from .kept_memory import FEWEST_CALLS, KeptMemory, is_torchs_own
from .kept_samples import HeldResults, KeptSample
from .session import InputCase, Session
from .stacked import stacked
from .verdicts import Checks, WrongError

_MOST_KEPT = 8
"""Outputs that are judged by references of their own after they were chosen: one for a call in ten that is skipped
would find it in one trial of ten."""
_KEPT_BYTES = 4 << 20
"""What they take with their inputs, of large ones one alone is kept: a reference takes a hundred times a launch."""
_MOST_QUICK = 24
"""Further outputs, which are judged by torch's own result: of a call in eight that is skipped, one is among them."""
_QUICK_BYTES = 64 << 20
"""What these take with their inputs."""
_RETURNED_BYTES = 64 << 20
"""What returned results may take that are held while others are returned."""
_MOST_CALLS, _CALLS_S = 512, 0.05
"""The most calls, and seconds, in which memory that is held must not be returned again."""
_OTHERS_CALLS_S = 2.0
"""The most seconds of a trial where the memory is not of torch's allocator: nobody can tell whether it is kept."""
_LET_GO = 6
"""Calls of which the results are let go of, where launches are short."""
_SAME_MEMORY = "two calls on inputs at one address return the same memory: the second overwrites the first's result"


# bound at import, so that a candidate's later patch is not called
_address = torch.Tensor.data_ptr


class TimedPlan:
    """One launch a rotating copy, each with outputs of its own; scratch is shared. Both are poisoned at first.

    ``warm`` is a launch on a copy for warming up, which none of ``launches`` uses; None where there is no such copy.

    ``between`` is to be called before each sample. ``judged``: whether some samples are judged, which needs the
    reference.
    """

    def __init__(self, plan: Plan, session: Session, *, judged: bool = True) -> None:
        self._plan = plan
        self._session = session
        self._functional = plan.candidate.implementation.returns_outputs
        self._judged = judged and session.is_roomy and not session.op.parsed.mutates
        self._mutates = judged and session.is_roomy and session.op.parsed.mutates
        # without a twin the answer costs a reference, too much where only times are wanted
        asked = judged or session.twin is not None
        self._changeable = self._places() if asked and session.is_mixable else ()
        values = session.values(session.timed_kind)
        self._movable = self._movable_among(values) if session.is_roomy else {}
        self._held = HeldResults()
        self._noted = KeptMemory()
        """What was returned when it was checked."""
        self._prepared: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Prepared tensors of one copy, chosen at random, each with a copy from when it was made."""
        copies = session.rotation.copies
        self._used: Sequence[int] = range(len(copies))
        """Indices of the copies that launches use."""
        self.show(session.timed_kind, values)
        specs = () if self._functional else plan.signature.outputs.values()
        self._stacks = tuple(Stack(spec, len(copies)) for spec in specs)
        # one scratch for all launches, as the allocator reuses one from call to call: a workspace may take gigabytes
        self._scratch = {name: Stack(spec, 1) for name, spec in plan.signature.scratch.items()}
        given = [tuple(stack.tensors[copy] for stack in self._stacks) for copy in range(len(copies))]
        count = len(copies) - session.warms
        self.outputs: list[Tensors] = given[:count]
        self.launches: list[Enqueue] = [self._launch(copies[copy], self.outputs, copy) for copy in range(count)]
        self._warmed = range(count, len(copies))
        self.warm = self._launch(copies[count], given[count:], 0) if self._warmed else None
        self.between = self._between()

    def _between(self) -> BetweenSamples:
        session = self._session
        generator = torch.Generator(session.device.torch).manual_seed(secrets.randbits(60))
        outputs = [FlippedElements(stack, generator) for stack in self._stacks]
        case = session.case(session.timed_kind) if self._judged else None
        values = session.values(session.timed_kind)
        kind = BetweenMutations if self._mutates else BetweenSamples
        between = kind(
            session.rotation,
            self._changeable,
            self._movable,
            outputs,
            self._looked_at() if case else (),
            None if case is None else partial(self._holding, case),
            self._kept if self._judged else None,
            returned=self._functional,
        )
        between.warmed = self._warmed
        most = max(1, min(_MOST_KEPT, _KEPT_BYTES // max(session.working_set, 1)))
        between.keep_up_to(most, min(_MOST_QUICK, _QUICK_BYTES // max(session.working_set, 1)) if case else 0)
        if isinstance(between, BetweenMutations):
            cold = session.device.type == "cuda" and session.protocol.regime == "cold"
            flush = flushes_of(2 * session.protocol.cache_bytes, session.device).flush if cold else None
            mutated = {place: values[place] for place in session.mutated}
            between.refresh(mutated, self._kept_mutation, flush, self._rigid(session.mutated))
        if self._judged or self._mutates:
            fixed = session.fixed(self._exchangeable())
            between.exchange({place: values[place] for place in fixed}, session.other_draws(fixed))
        return between

    def _rigid(self, places: Sequence[int]) -> list[int]:
        """The places, of some, of integers of which the op does not say that they are independent."""
        session = self._session
        values = session.values(session.timed_kind)
        return [
            place
            for place in places
            if place not in session.independent
            and not all(each.is_floating_point() for each in tensors_in((values[place],)))
        ]

    def _exchangeable(self) -> tuple[int, ...]:
        """Places of the arguments that may be of another draw; none where weights that stay may depend on others."""
        session = self._session
        if self._plan.prepared and not session.is_mixable:
            return ()
        return self._places()

    def _looked_at(self) -> list[SpreadElements]:
        # an output may be empty, e.g. the gradient of a bias that is not given
        specs = [(place, spec) for place, spec in enumerate(self._plan.signature.outputs.values()) if spec.numel]
        if self._functional:
            return [OfReturned(spec, self.outputs, place) for place, spec in specs]
        return [OfStack(spec, self._stacks[place]) for place, spec in specs]

    def _places(self) -> tuple[int, ...]:
        """Places of arguments of which an element may change; not weights of prepared tensors, made anew otherwise."""
        session = self._session
        kept = session.op.weights if self._plan.prepared else frozenset()
        names = session.op.parsed.names
        return tuple(place for place in session.unmutated if names[place] not in kept)

    def _movable_among(self, values: tuple[Any, ...]) -> dict[int, Any]:
        """Place -> value of the changeable arguments but weights: every result depends on some of these.

        Their elements are floating, or independent of each other.
        """
        op, independent = self._session.op, self._session.independent
        places = [place for place in self._changeable if op.parsed.names[place] not in op.weights]
        tensors = {place: tensors_in((values[place],)) for place in places}
        return {
            place: values[place]
            for place in places
            if any(each.is_floating_point() or place in independent for each in tensors[place])
        }

    def _holding(self, case: InputCase, copies: Sequence[int]) -> list[torch.Tensor]:
        """Flags whether the outputs of these copies are right; raises WrongError for others than plain tensors."""
        if self._functional:
            self._check_returned([self.outputs[copy] for copy in copies], "while it was timed")
        session = self._session
        judged = [session.op.results(self.outputs[copy], session.rotation.copies[copy]) for copy in copies]
        if session.op.compare:
            # several results may be right, which bounds cannot express
            return [torch.tensor(not session.judge(case, one), device=session.device.torch) for one in judged]
        return _within(case, judged)

    def _kept(self, copy: int) -> KeptSample:
        values = self._session.rotation.copies[copy]
        if self._functional:
            self._check_returned([self.outputs[copy]], "while it was timed")
            self._held.hold(copy, self.outputs[copy])
        return KeptSample(self._session, values, self._session.op.results(self.outputs[copy], values))

    def check_held(self, checks: Checks) -> None:
        """Check that results which were returned while it was timed, and held since, are as they were."""
        self._held.check(self.outputs, checks)

    def _kept_mutation(self, copy: int, values: tuple[Any, ...]) -> Callable[[], list[torch.Tensor]]:
        """Copies what a launch on ``values`` has left of a rotating copy; returns a function that judges it."""
        session = self._session
        found = session.op.results(self.outputs[copy], session.rotation.copies[copy])
        results = tuple(result.clone() for result in found)

        def flags() -> list[torch.Tensor]:
            return [torch.tensor(not session.judge(session.case_of(values), results), device=session.device.torch)]

        return flags

    def change_inputs(self) -> None:
        """Change one element of each input that may change, in each copy another; ``show`` puts them back."""
        self._session.rotation.change(self._changeable)

    def keep(self, copies: int) -> None:
        """Launch on the first ``copies`` alone from now on: of a slow kernel no more can be timed."""
        del self.launches[copies:], self.outputs[copies:]
        self.between.copies = self._used = [*range(copies), *self._warmed]

    def release(self) -> None:
        """Let go of the launches and their scratch: runs that follow have scratch of their own."""
        self.launches.clear()
        self.warm = None
        self._scratch.clear()

    def show(self, kind: str, values: tuple[Any, ...]) -> None:
        """Overwrite the timed inputs in place; tensors that the host prepared from them are prepared anew."""
        rotation, prepared = self._session.rotation, self._plan.prepared
        rotation.show(kind, values)
        if prepared:
            rotation.announce()
            extended = [prepared.extend(rotation.copies[copy]) for copy in self._used]
            made = secrets.choice(extended)[len(values) :]
            self._prepared = [(tensor, tensor.clone()) for tensor in made]

    def poison(self) -> None:
        """Fill outputs and scratch with values that no right answer holds.

        Outputs that functional code returned are filled too: a graph that captured the code writes them again.
        """
        for stack in (*self._stacks, *self._scratch.values()):
            stack.poison()
        self._poison_returned()

    def disturb(self) -> None:
        """Change one element of each output, chosen at random. Outputs that were returned are poisoned instead."""
        self.between.change_outputs()
        self._poison_returned()

    def _poison_returned(self) -> None:
        if self._functional:
            for output in (output for outputs in self.outputs for output in outputs):
                if fault := plain_fault(output):
                    raise WrongError("wrong_result", f"while it was timed: an output {fault}")
            # an output may be an inference tensor, or a view of a tensor that requires a gradient
            with torch.inference_mode():
                poison(tuple(output.detach() for outputs in self.outputs for output in outputs))

    def launch_each(self) -> None:
        """Call every launch once. Previous outputs are still held: no call may return their memory again.

        Of large ones the first alone is held.
        """
        held = self._some_returned()
        for launch in self.launches:
            launch()
        if held and _any_overlap([*held, *_plain(self.outputs)]):
            raise WrongError("wrong_result", _SAME_MEMORY)

    def launch_on(self, launch_us: float, *, long: bool) -> None:
        """Call launches for a while: none may return memory of a result that is still held; raises WrongError.

        ``launch_us``: the time of one, on a device that the host does not wait for. Of slow ones there are no more
        calls: what the checked ones have returned must be free. ``long``: for longer where nobody can tell who owns
        the memory.
        Whoever returns the buffers of a ring in turn comes round, or keeps what it has returned (``KeptMemory``).
        """
        if not self._functional or self._session.op.parsed.mutates:
            return
        noted, self._noted = self._noted, KeptMemory()
        held = self._some_returned()
        seconds = _OTHERS_CALLS_S if long and not all(map(is_torchs_own, held)) else _CALLS_S
        most = min(_MOST_CALLS, int(1e6 * seconds / max(launch_us, 0.1)))
        if most < FEWEST_CALLS:
            noted.check()
            return
        addresses, began = set(map(_address, held)), perf_counter()
        for copy in islice(cycle(range(len(self.launches))), most):
            self.launches[copy]()
            if not addresses.isdisjoint(map(_address, _plain([self.outputs[copy]]))):
                raise WrongError("wrong_result", _SAME_MEMORY)
            if perf_counter() - began > seconds:
                break
        del held
        self._let_go(min(_LET_GO, most))

    def _let_go(self, calls: int) -> None:
        """Call launches and let go of what they return; raises WrongError if the candidate still holds it later."""
        kept = KeptMemory()
        for copy in islice(cycle(range(len(self.launches))), calls):
            self.launches[copy]()
            kept.returned(_plain([self.outputs[copy]]))
            self.outputs[copy] = ()
        kept.check()

    def _some_returned(self) -> list[torch.Tensor]:
        """The latest outputs that functional code returned, of each copy; of large ones of the first copies alone."""
        if not self._functional:
            return []
        most = max(1, _RETURNED_BYTES // max(1, sum(each.nbytes for each in self.outputs[0])))
        return _plain(self.outputs[:most])

    def check(self, checks: Checks, case: InputCase, when: str) -> None:
        """Check every copy's results for that case. ``when`` begins the message of a fault."""
        if self._functional:
            self._check_returned(self.outputs, when)
            self._noted.returned(_plain(self.outputs))
        op, rotation = self._session.op, self._session.rotation
        judged = list(map(op.results, self.outputs, rotation.copies))
        # one copy within bounds is enough where all copies must be equal
        closely = judged[:1] if self._plan.candidate.implementation.deterministic else judged
        checks.add(_within(case, closely), "wrong_result", partial(self._why, case, judged, when, closely))
        changed = [having_same_bits(tensor, was) for tensor, was in self._prepared]
        checks.add(changed, "wrong_result", f"{when}: it changes a tensor that prepare() made")
        if self._plan.candidate.implementation.deterministic:
            checks.add(self._agree(), "nondeterministic", partial(self._why_differing, case, judged, when))

    def check_margins(self, checks: Checks) -> None:
        """Check that nothing was written beside outputs and scratch since they were poisoned."""
        for name, stack in zip(self._plan.signature.outputs, self._stacks, strict=False):
            checks.add([stack.margins_untouched()], "wrong_result", f"it writes outside its output {name}")
        for name, stack in self._scratch.items():
            checks.add([stack.margins_untouched()], "wrong_result", f"it writes outside its scratch {name}")
        for place, flag in self._session.rotation.margins_untouched(self._session.mutated).items():
            name = self._session.op.parsed.names[place]
            checks.add([flag], "wrong_result", f"it writes outside {name}, which it mutates")

    def _launch(self, values: tuple[Any, ...], outputs: list[Tensors], place: int) -> Enqueue:
        """A launch on these arguments, whose outputs are those at a place of ``outputs``, or are put there."""
        plan = self._plan
        scratch = handed_out([stack.tensors[0] for stack in self._scratch.values()])
        # what it does to the objects that it is given must not reach those that are written to and judged
        extended, given = handed_out(plan.prepared.extend(values)), handed_out(outputs[place])
        run = plan.run

        def write() -> None:
            run(given, extended, scratch)

        def keep() -> None:
            # kept, so that the allocator gives every copy its own output and the rotation stays cold
            outputs[place] = as_tuple(run((), extended, scratch))

        return keep if self._functional else write

    def _check_returned(self, returned: Sequence[Tensors], when: str) -> None:
        specs = self._plan.signature.outputs
        for outputs, values in zip(returned, self._session.rotation.copies, strict=False):
            faults = [fault for output in outputs if (fault := plain_fault(output))]
            arguments = tensors_in(values)
            if faults or any(overlap(output, argument) for output in outputs for argument in arguments):
                told = faults[0] if faults else "shares memory with an argument"
                raise WrongError("wrong_result", f"{when}: an output {told}")
        # a closer look at each would take longer than all the rest
        for place in {0, len(returned) - 1}:
            if faults := output_faults(returned[place], specs, self._session.rotation.copies[place]):
                raise WrongError("wrong_result", f"{when}: {'; '.join(faults)}")
        for position in range(len(specs)):
            if _any_overlap([outputs[position] for outputs in returned]):
                raise WrongError("wrong_result", "several calls return the same memory: a later one overwrites it")

    def _agree(self) -> list[torch.Tensor]:
        count = len(self.outputs)
        mutated = self._session.rotation.agree(self._session.mutated, count)
        if not self._functional:
            return [*(stack.agrees(count) for stack in self._stacks), *mutated]
        together = stacked(self.outputs)
        if len(together) == 1:
            return mutated + [having_same_bits(each, each[:1].expand_as(each)) for each in together[0]]
        first, *others = self.outputs
        return mutated + [
            having_same_bits(output, expected)
            for outputs in others
            for output, expected in zip(outputs, first, strict=True)
        ]

    def _why_differing(self, case: InputCase, judged: Sequence[Tensors], when: str) -> str:
        """The message for copies that differ though each is right; raises WrongError where one is not."""
        if fault := self._fault(case, judged, when):
            raise WrongError("wrong_result", fault)
        return f"{when}: it gives other bits at other addresses for the same inputs, and does not say so"

    def _why(self, case: InputCase, judged: Sequence[Tensors], when: str, closely: Sequence[Tensors]) -> str:
        """The fault of results out of bounds; "" if a closer look, e.g. by the op's comparator, finds them right."""
        if fault := self._fault(case, judged, when):
            return fault
        return f"{when}: {LATE}" if all(_within(case, closely)) else ""

    def _fault(self, case: InputCase, judged: Sequence[Tensors], when: str) -> str:
        for results in judged:
            if fault := self._session.judge(case, results):
                return f"{when}: {fault}"
        return ""


def _plain(returned: Sequence[Tensors]) -> list[torch.Tensor]:
    return [output for outputs in returned for output in outputs if output.numel() and not plain_fault(output)]


def _any_overlap(tensors: Sequence[torch.Tensor]) -> bool:
    ordered = sorted(tensors, key=_address)
    return any(overlap(one, other) for one, other in pairwise(ordered))


def _within(case: InputCase, judged: Sequence[Tensors]) -> list[torch.Tensor]:
    return [flag for results in judged for flag in holding(case.bounds, results)]
