"""From problems to plans: the supported implementations, their valid configurations, why the others are out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ...arguments.inputs import arguments_of, arguments_of_other_kinds
from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...discovery.catalog import Catalog
from ...dispatch.plans.plan import Candidate
from ...errors import PluginError, RegistryError, UnknownNameError
from ...implementation import Implementation
from ...problem import Arguments, Problem, TensorSpec
from ...space import Config, Space
from .twin import is_large, twin_of

_MEMORY_SHARE = 0.8
_SCRATCHES = 2
"""Scratch buffers at once: a trial has one at a time; in the finals the incumbent and a challenger keep one each."""


@dataclass(frozen=True)
class ImplementationPlan:
    """One implementation on one problem: its space there, or every reason why it is not supported.

    ``faulty``: the one reason is a fault of its answers.
    """

    implementation: Implementation
    space: Space | None = None
    default: Config | None = None
    unsupported: tuple[str, ...] = ()
    preference: float = 0.0
    faulty: bool = False

    @property
    def supported(self) -> bool:
        return not self.unsupported

    @property
    def configs(self) -> Sequence[Config]:
        """The valid configurations; of a large space each is made when it is asked for."""
        return () if self.space is None else self.space.configs

    def has(self, config: Config) -> bool:
        """Whether a configuration is one of the space. 1, 1.0 and True are distinct."""
        return self.space is not None and config in self.space


@dataclass(frozen=True)
class ProblemPlan:
    """The implementations to search for one problem; ``skipped`` says why it cannot be tuned here, "" if it can.

    ``others`` are implementations that are not searched, but a stored winner among them still has to be beaten.
    ``faulty``: it is skipped for a fault of its op, which no other device mends.
    """

    problem: Problem
    op: Op
    device: Device
    choices: tuple[ImplementationPlan, ...]
    others: tuple[ImplementationPlan, ...] = ()
    skipped: str = ""
    faulty: bool = False

    @property
    def supported(self) -> tuple[ImplementationPlan, ...]:
        return tuple(choice for choice in self.choices if choice.supported)

    @property
    def candidates(self) -> int:
        """Size of the joint space."""
        return sum(len(choice.configs) for choice in self.supported)

    @cached_property
    def is_large(self) -> bool:
        """Whether to verify a candidate takes longer than to time it in a block of the finals."""
        return is_large(self.op, self.problem)

    @cached_property
    def arguments(self) -> Arguments:
        return arguments_of(self.op, self.problem)

    @cached_property
    def twin(self) -> tuple[Problem, Arguments] | None:
        """The problem's twin with the specs of its arguments; None for a problem that has no twin."""
        twin = twin_of(self.op, self.problem)
        return None if twin is None else (twin, arguments_of(self.op, twin))

    @cached_property
    def verified(self) -> tuple[tuple[Problem, Arguments], ...]:
        """Problems and arguments on which a candidate is verified beside the timed ones: they may need other variants.

        These are the twin, and kinds of inputs with other attributes than the timed ones, of the twin if there is one.
        """
        problem = self.problem if self.twin is None else self.twin[0]
        others = [(problem, arguments) for arguments in arguments_of_other_kinds(self.op, problem)]
        return (*([] if self.twin is None else [self.twin]), *others)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes that verification of the problem holds at once, scratch left out."""
        return needed_bytes(self.op, self.problem)

    def too_large(self, scratch: Iterable[TensorSpec]) -> str:
        """Why the device has too little memory for a candidate with this scratch, "" if it has enough."""
        held = _SCRATCHES * sum(spec.nbytes for spec in scratch)
        if not held or self.needed_bytes + held <= _MEMORY_SHARE * self.device.memory_bytes:
            return ""
        return (
            f"its scratch takes {held / _SCRATCHES / 2**30:.1f} GiB, beside {self.needed_bytes / 2**30:.1f} GiB that"
            f" verification of the problem needs; {self.device.name} has {self.device.memory_bytes / 2**30:.0f} GiB"
        )

    def with_choices(self, choices: tuple[ImplementationPlan, ...]) -> ProblemPlan:
        """The plan with other choices, skipped where none of them is supported."""
        none = choices and not any(choice.supported for choice in choices)
        skipped = _why_none(self.op, choices, self.device) if none else self.skipped
        return replace(self, choices=choices, skipped=skipped)

    def with_fault(self, fault: str) -> ProblemPlan:
        """The plan, skipped for a fault of its op; as it is for ""."""
        return replace(self, choices=(), others=(), skipped=fault, faulty=True) if fault else self

    def defaults(self) -> list[Candidate]:
        """The default candidate of every supported implementation; first the one that an untuned dispatch would run."""
        ranked = sorted(self.supported, key=lambda choice: choice.preference, reverse=True)
        return [Candidate(choice.implementation, choice.default) for choice in ranked if choice.default is not None]


def plan(
    problems: Sequence[Problem], catalog: Catalog, device: Device, implementations: Sequence[str] = ()
) -> tuple[ProblemPlan, ...]:
    """One ProblemPlan a problem. ``implementations``: names of the only ones kept; an unknown name is an error."""
    ops = sorted({problem.op for problem in problems})
    known = {name: [implementation.name for implementation in catalog.implementations(name)] for name in ops}
    everywhere = {name for names in known.values() for name in names}
    for wanted in implementations:
        if wanted not in everywhere:
            raise UnknownNameError(f"implementation of {' or '.join(ops)}", wanted, everywhere)
    return tuple(_plan_one(problem, catalog, device, frozenset(implementations)) for problem in problems)


def check_shared(plans: Sequence[ProblemPlan], catalog: Catalog) -> None:
    """Raise PluginError if a plan uses an op or implementation that was added by a call: other processes lack it."""
    planned = {(plan.op.name, choice.implementation.name) for plan in plans for choice in plan.supported}
    ops, implementations = catalog.added_by_calls()
    here = [name for name in ops if any(op == name for op, _ in planned)]
    here += [f"{name} of {op}" for op, name in implementations if (op, name) in planned and op not in here]
    if here:
        raise PluginError(
            f"tune: {', '.join(here)}: added in this process alone, while the tuner measures in processes of its own",
            hint='put it into a file, and load that: registry.load_file("kernels.py"), or tune --plugin kernels.py',
        )


def needed_bytes(op: Op, problem: Problem) -> int:
    """Bytes that verification holds at once: arguments and outputs twice, the float64 reference, its temporaries."""
    arguments = arguments_of(op, problem)
    outputs = op.output_specs(arguments, torch.device("cpu")).values()
    tensors = [*arguments.tensors.values(), *outputs]
    return (
        2 * sum(spec.nbytes for spec in tensors)
        + 8 * sum(spec.numel for spec in tensors)
        + 16 * sum(spec.numel for spec in op.result_specs(arguments, torch.device("cpu")))
    )


_NO_SUCH_TENSOR = (RuntimeError, OverflowError, MemoryError, TypeError, ValueError)
"""Raised by torch and NumPy for a size that no tensor can have: TypeError where it does not fit into 64 bits."""


def _plan_one(problem: Problem, catalog: Catalog, device: Device, wanted: frozenset[str]) -> ProblemPlan:
    op = catalog.op(problem.op)
    try:
        need = needed_bytes(op, problem)
    except RegistryError:
        raise
    except _NO_SUCH_TENSOR as fault:
        first_line = str(fault).partition("\n")[0] or type(fault).__name__
        return ProblemPlan(problem, op, device, (), skipped=f"no inputs can be made of it: {first_line}")
    if need > _MEMORY_SHARE * device.memory_bytes:
        reason = (
            f"needs {need / 2**30:.0f} GiB with its float64 reference, {device.name} has "
            f"{device.memory_bytes / 2**30:.0f} GiB"
        )
        return ProblemPlan(problem, op, device, (), skipped=reason)
    everything = [_choice(implementation, problem, device) for implementation in catalog.implementations(op.name)]
    choices = tuple(choice for choice in everything if not wanted or choice.implementation.name in wanted)
    others = tuple(choice for choice in everything if choice not in choices)
    skipped = "" if any(choice.supported for choice in choices) else _why_none(op, choices, device)
    return ProblemPlan(problem, op, device, choices, others, skipped)


def _why_none(op: Op, choices: Sequence[ImplementationPlan], device: Device) -> str:
    if not choices:
        return answers.no_implementation(op)
    reasons = "; ".join(f"{choice.implementation.name}: {', '.join(choice.unsupported)}" for choice in choices)
    return f"no implementation supports it on {device}: {reasons}"


def _choice(implementation: Implementation, problem: Problem, device: Device) -> ImplementationPlan:
    question = "unsupported"
    try:
        if reasons := answers.refusals(implementation, problem, device):
            return ImplementationPlan(implementation, unsupported=reasons)
        question = "space"
        space = answers.space_of(implementation, problem, device)
        len(space.configs)  # a fault of a constraint is told here
        question = "default"
        default = answers.default_config(implementation, problem, device)
        question = "preference"
        preference = answers.declared_preference(implementation, problem, device)
    except Exception as fault:  # a stranger's code; a fault in it takes only itself out
        told = answers.fault_text(implementation, question, fault).removeprefix(f"{implementation.name}: ")
        return ImplementationPlan(implementation, unsupported=(told,), faulty=True)
    return ImplementationPlan(implementation, space, default, preference=preference)
