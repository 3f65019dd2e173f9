"""A plan: a bound, loaded, launch-ready candidate, which the hot path calls and the tuner verifies and times.

A plan belongs to one size of a compiled variant. For another size the implementation is asked again with that size's
numbers, and the loaded kernels are bound to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from ...artifact import Artifact, Built, Signature, Variant, code_of, texts_of
from ...author_code import at_method
from ...contract import Op, as_tuple
from ...correctness.output_faults import overlap
from ...device import Device
from ...discovery.answers import check_own_names, checked_run, scratch_specs
from ...errors import InvalidDefinitionError
from ...implementation import Implementation, Run, Tensors, binds_loaded
from ...problem import Arguments, Problem, TensorSpec
from ...space import Config, config_key
from .any_size_runs import AnySizeRuns
from .prepared import PreparedTensors
from .written_plan import written_call


@dataclass(frozen=True)
class Candidate:
    """An implementation with a configuration."""

    implementation: Implementation
    config: Config

    @cached_property
    def key(self) -> str:
        """Text that is unique within one op."""
        return f"{self.implementation.name} {config_key(self.config)}"

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.config.items())
        return f"{self.implementation.name}({shown})"


@dataclass(frozen=True)
class Plan:
    """A candidate that is bound and loaded for tensors of one signature.

    ``plan(*values)`` takes the schema's values in order, allocates the outputs and returns them as the op does.
    ``into(outputs, values)`` writes into given outputs (for ``returns_outputs`` implementations: returns new ones).
    """

    op: Op
    candidate: Candidate
    problem: Problem
    signature: Signature
    artifacts: tuple[Artifact, ...]
    run: Run
    prepared: PreparedTensors
    read: frozenset[str] = frozenset()
    """Names of the attributes that were read while the run was bound."""

    def __call__(self, *values: Any) -> Any:
        return self.call(*values)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The fastest function for this signature that allocates, runs and returns; generated at the first access."""
        signature, implementation = self.signature, self.candidate.implementation
        # an op that only mutates has no outputs
        tensors = (*signature.outputs.values(), *signature.arguments.tensors.values())
        return written_call(
            len(signature.arguments.unrecorded),
            tensors[0].device,
            self.run,
            tuple(signature.outputs.values()),
            tuple(signature.scratch.values()),
            self.prepared.hit(signature.arguments) if self.prepared else None,
            returns_outputs=implementation.returns_outputs,
            refuse_ignored=partial(refuse_ignored, implementation),
        )

    def allocate(self) -> Tensors:
        """Uninitialised outputs as the op's fake says."""
        return tuple(spec.empty() for spec in self.signature.outputs.values())

    def into(self, outputs: Tensors, values: tuple[Any, ...]) -> Tensors:
        """Run once into ``outputs`` and return the tensors that hold the result."""
        scratch = tuple(spec.empty() for spec in self.signature.scratch.values())
        return self.checked_run(outputs, self.prepared.extend(values), scratch)

    def checked_run(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Tensors:
        """Run once and return the tensors that hold the result. Raises as ``refuse_ignored`` and ``returned``."""
        returned = self.run(outputs, arguments, scratch)
        if self.candidate.implementation.returns_outputs:
            return self.returned(returned)
        refuse_ignored(self.candidate.implementation, returned, (*outputs, *arguments, *scratch))
        return outputs

    def returned(self, given: Any) -> Tensors:
        """The outputs that a ``returns_outputs`` run returned, as a tuple. Raises InvalidDefinitionError for None."""
        if given is None and self.signature.outputs:
            implementation = self.candidate.implementation
            raise InvalidDefinitionError(
                f"{implementation.name}: run returned None{at_method(implementation, 'bind')}: return the outputs, or"
                " write into those that run is given and say returns_outputs = False"
            )
        return as_tuple(given)


def refuse_ignored(implementation: Implementation, returned: Any, given: tuple[Any, ...]) -> None:
    """Raise InvalidDefinitionError if a run returned new tensors without ``returns_outputs``.

    A returned tensor that shares memory with one in ``given`` is allowed: ``torch.add(x, y, out=z)`` returns ``z``.
    """
    if any(returned is one for one in given):
        return
    tensors = [
        value for value in (returned if isinstance(returned, tuple | list) else (returned,)) if _is_tensor(value)
    ]
    if any(not any(overlap(tensor, one) for one in given if _is_tensor(one)) for tensor in tensors):
        raise InvalidDefinitionError(
            f"{implementation.name}: run returned a tensor that is ignored{at_method(implementation, 'bind')}:"
            " say returns_outputs = True, or write into the outputs that run is given"
        )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


@dataclass(frozen=True)
class Draft:
    """A plan without its run: a candidate with the signature of its plan for a problem."""

    op: Op
    candidate: Candidate
    problem: Problem
    device: Device
    signature: Signature
    prepared: PreparedTensors

    @classmethod
    def of(cls, op: Op, candidate: Candidate, problem: Problem, arguments: Arguments, device: Device) -> Draft:
        """The draft with specs of everything that the candidate's launches may name."""
        prepared = PreparedTensors(op, candidate.implementation, problem, candidate.config)
        outputs = op.output_specs(arguments, device.torch)
        scratch = scratch_of(candidate, problem, device)
        own = prepared.specs(arguments)
        if own or scratch:
            check_own_names(op, candidate.implementation, own, scratch)
        signature = Signature(arguments, outputs, scratch, own)
        return cls(op, candidate, problem, device, signature, prepared)

    def variants(self) -> tuple[Variant, ...]:
        """The variants that must be compiled for the plan."""
        return self.candidate.implementation.variants(self.problem, self.candidate.config, self.device, self.signature)

    @property
    def code(self) -> str:
        """Hash of the plan's variants: equal hashes mean identical code; "" if nothing is compiled."""
        return code_of(self.variants())

    @property
    def texts(self) -> str:
        """Hash of the texts of the plan's kernels, as trials store it; "" if nothing is compiled."""
        return texts_of(self.variants())

    def from_memory(self, runs: AnySizeRuns) -> Plan | None:
        """The plan by a run or kernels that are in memory from another size, else None. Compiles and loads nothing."""
        implementation, config = self.candidate.implementation, self.candidate.config
        if implementation.any_size:
            run = runs.get(self)
        elif binds_loaded(type(implementation)):
            run = implementation.bind_loaded(self.problem, config, self.device, self.signature)
        else:
            run = None
        return None if run is None else self.planned(run)

    def untuned(self) -> Plan | None:
        """The plan by ``Implementation.bind_untuned``, for a problem that was not tuned; None if it returns None."""
        family = tuple(self.problem.dims[name] for name in sorted(self.op.static))
        implementation, config = self.candidate.implementation, self.candidate.config
        run = implementation.bind_untuned(self.problem, config, self.device, self.signature, family)
        return None if run is None else self.planned(run)

    def compiled(self, artifacts: Mapping[str, Artifact], runs: AnySizeRuns | None = None) -> Plan:
        """The plan with a newly bound run; variants that are not in ``artifacts`` (by variant key) are compiled.

        An ``any_size`` run is kept in ``runs``. Raises CompileError or a subclass.
        """
        implementation, config = self.candidate.implementation, self.candidate.config
        built = tuple(
            artifacts.get(variant.key) or implementation.compile(variant, self.device.target)
            for variant in self.variants()
        )

        def bound() -> Run:
            given = implementation.bind(self.problem, config, self.device, Built(self.signature, built))
            return checked_run(implementation, given)

        # attributes read by the problem only are in its dimensions, which are compared anyway
        run, read = self.signature.arguments.read_by(bound)
        plan = self.planned(run, built, read)
        if implementation.any_size and runs is not None:
            runs.put(self, plan)
        return plan

    def planned(self, run: Run, artifacts: tuple[Artifact, ...] = (), read: frozenset[str] = frozenset()) -> Plan:
        """The plan with a bound run; ``read``: the attributes that were read while it was bound."""
        return Plan(self.op, self.candidate, self.problem, self.signature, artifacts, run, self.prepared, read)


def scratch_of(candidate: Candidate, problem: Problem, device: Device) -> dict[str, TensorSpec]:
    """Specs on the device of the scratch tensors that a candidate needs for a problem."""
    return scratch_specs(candidate.implementation, problem, candidate.config, device)


def build(
    op: Op,
    candidate: Candidate,
    problem: Problem,
    arguments: Arguments,
    device: Device,
    artifacts: Mapping[str, Artifact] | None = None,
    *,
    untuned: bool = False,
) -> Plan:
    """The plan of a candidate: compile the variants not in ``artifacts``, load, bind. Raises CompileError.

    ``untuned``: the problem was not tuned, so ``Implementation.bind_untuned`` may make the run.
    """
    draft = Draft.of(op, candidate, problem, arguments, device)
    return (draft.untuned() if untuned else None) or draft.compiled(artifacts or {})
