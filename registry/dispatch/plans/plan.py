"""A plan: a bound, loaded, launch-ready candidate. The hot path calls it; the tuner verifies and times the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...artifact import Artifact, Built, Signature
from ...author_code import at_method
from ...contract import Op, as_tuple
from ...correctness.numerics import overlap
from ...device import Device
from ...errors import InvalidDefinitionError
from ...implementation import Implementation, Run, Tensors
from ...problem import Arguments, Problem, TensorSpec
from ...space import Config, config_key
from .prepared import PreparedTensors
from .written_plan import fixed, written_call


@dataclass(frozen=True)
class Candidate:
    """An implementation with a configuration."""

    implementation: Implementation
    config: Config

    @property
    def key(self) -> str:
        """Unique within one op."""
        return f"{self.implementation.name} {config_key(self.config)}"

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.config.items())
        return f"{self.implementation.name}({shown})"


@dataclass(frozen=True)
class Plan:
    """What runs one candidate on tensors of one signature.

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

    def __call__(self, *values: Any) -> Any:
        return self.call(*values)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The leanest function that allocates, runs and returns, for this signature. Written when first asked for."""
        signature, implementation = self.signature, self.candidate.implementation
        return written_call(
            len(signature.arguments.values),
            _device_of(signature),
            self.run,
            [fixed(spec) for spec in signature.outputs.values()],
            [fixed(spec) for spec in signature.scratch.values()],
            self.prepared.hit(signature.arguments) if self.prepared else None,
            returns_outputs=implementation.returns_outputs,
        )

    def allocate(self) -> Tensors:
        """Uninitialised outputs as the op's fake says."""
        return tuple(spec.empty() for spec in self.signature.outputs.values())

    def into(self, outputs: Tensors, values: tuple[Any, ...]) -> Tensors:
        """Run once into ``outputs`` and return what now holds the result."""
        scratch = tuple(spec.empty() for spec in self.signature.scratch.values())
        return self.checked_run(outputs, self.prepared.extend(values), scratch)

    def checked_run(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Tensors:
        """Run once and return what holds the result. Raises InvalidDefinitionError for a result that is ignored."""
        returned = self.run(outputs, arguments, scratch)
        if self.candidate.implementation.returns_outputs:
            return as_tuple(returned)
        refuse_ignored(self.candidate.implementation, returned, (*outputs, *arguments, *scratch))
        return outputs


def refuse_ignored(implementation: Implementation, returned: Any, given: tuple[Any, ...]) -> None:
    """Raise InvalidDefinitionError when a run returned new tensors and its implementation does not say so.

    What shares memory with a tensor that the run was given, as ``torch.add(x, y, out=z)`` returns ``z``, is allowed.
    """
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


def _device_of(signature: Signature) -> torch.device:
    """Where its tensors are; an op that only mutates has no outputs."""
    return next(spec.device for spec in (*signature.outputs.values(), *signature.arguments.tensors.values()))


def signature_of(
    op: Op, candidate: Candidate, problem: Problem, arguments: Arguments, device: Device, prepared: PreparedTensors
) -> Signature:
    """Specs of all that the candidate's launches may name."""
    implementation, config = candidate.implementation, candidate.config
    scratch = {
        name: TensorSpec(spec.shape, spec.dtype, spec.strides, device.torch)
        for name, spec in implementation.scratch(problem, config, device).items()
    }
    return Signature(arguments, op.output_specs(arguments, device.torch), scratch, prepared.specs(arguments))


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
    """Compile what is not in ``artifacts`` (by variant key), load, bind. Raises CompileError and its kin.

    ``untuned``: the problem itself was not tuned, and the implementation may bind it as one of many.
    """
    implementation = candidate.implementation
    prepared = PreparedTensors(op, implementation, problem, candidate.config)
    signature = signature_of(op, candidate, problem, arguments, device, prepared)
    if untuned:
        family = tuple(problem.dims[name] for name in sorted(op.static))
        if (run := implementation.bind_untuned(problem, candidate.config, device, signature, family)) is not None:
            return Plan(op, candidate, problem, signature, (), run, prepared)
    found = artifacts or {}
    loaded = tuple(
        found.get(variant.key) or implementation.compile(variant, device.target)
        for variant in implementation.variants(problem, candidate.config, device, signature)
    )
    run = implementation.bind(problem, candidate.config, device, Built(signature, loaded))
    return Plan(op, candidate, problem, signature, loaded, run, prepared)
