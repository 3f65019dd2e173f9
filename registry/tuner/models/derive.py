"""A model's problems by op, with their numbers of calls: what ``tune --model`` tunes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...errors import InvalidArgumentError
from ...problem import Problem
from ..shapes.shapes import Ops, Shapes
from .description import Decoder
from .names import config_of
from .reading import decoder_of
from .step import called
from .workload import Workload


@dataclass(frozen=True)
class Derived:
    """The problems of a model's steps. ``notes`` tell what of the model no problem stands for."""

    shapes: Shapes
    decoder: Decoder
    notes: tuple[str, ...] = ()


def described(model: str, tensor_parallel: int = 1) -> Decoder:
    """One device's part of a model, given by name or path. Raises InvalidArgumentError."""
    return decoder_of(config_of(model), model, tensor_parallel)


def derive(decoder: Decoder, workload: Workload, catalog: Ops, ops: Collection[str] = ()) -> Derived:
    """The problems of a decoder under a workload, in the order of its steps; with ``ops`` only theirs.

    Raises InvalidArgumentError for a workload that an op refuses, such as one in a dtype that it has no tolerance for,
    and for quantised layers in training, which have no gradient of their weights.
    """
    if workload.training and workload.quantize != "none":
        raise InvalidArgumentError(
            f"training with quantize={workload.quantize}", hint="quantised weights have no gradient: leave one out"
        )
    known, notes = catalog.ops(), list(decoder.notes)
    problems: dict[str, list[Problem]] = {}
    counts: dict[Problem, int] = {}
    if decoder.quantized and workload.quantize == "none" and not workload.training:
        notes.append(f"the checkpoint is quantised ({decoder.quantized}): --quantize derives what its layers call")
    if decoder.conv1d and workload.quantize == "none" and (not ops or "linear" in ops):
        notes.append(
            "linear layers are Conv1D, which apply leaves to transformers unless they are packed: of problems of linear"
            " it calls the head's alone"
        )
    found = called(decoder, workload)
    for op in ops:
        if op not in {name for name, _ in found}:
            called_ops = ", ".join(dict.fromkeys(name for name, _ in found))
            raise InvalidArgumentError(f"{op}: the model does not call it", hint=f"it calls {called_ops}")
    for (op, dims), count in found.items():
        if ops and op not in ops:
            continue
        if op not in known:
            notes.append(f"{op}: no plugin defines it here")
            continue
        problem = known[op].problem_of(dict(dims))
        problems.setdefault(op, []).append(problem)
        counts[problem] = count
    return Derived(Shapes(problems, counts), decoder, tuple(dict.fromkeys(notes)))
