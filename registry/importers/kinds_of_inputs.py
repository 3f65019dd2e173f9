"""The kinds of inputs that the reference of a problem file takes, and whether its result is the same for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from .drawing import outputs_of, same_outputs

if TYPE_CHECKING:
    from .problem_file import ProblemFile

_PROBED_BYTES = 4 << 20
"""The largest inputs on which further kinds are tried when a problem is imported: that takes a second on a CPU."""
_FEW = 2
"""The size of a batch that larger inputs are cut to."""
_TRIED_SEED, _OTHER_SEED = 7, 8
KINDS = ("normal", "signed", "spike_last")
"""Kinds of inputs: as the file draws them; of both signs; with a large last element. The file's own come first."""


def of_kind(kind: str, tensors: Sequence[torch.Tensor], count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """The tensors, of which the first ``count`` are inputs of a kind; integers stay as the file draws them."""
    changed = list(tensors)
    for place in range(count):
        one = changed[place]
        if kind == "normal" or not one.is_floating_point():
            continue
        if kind == "signed":
            drawn = torch.randn(one.shape, generator=generator, device=one.device)
            changed[place] = (2 * drawn).to(one.dtype)
        elif one.numel():
            changed[place] = one.clone()
            changed[place].view(-1)[-1] = 8.0
    return changed


class TriedKinds:
    """Tries the reference of a problem file on small inputs of each kind, on the CPU, when it is asked."""

    def __init__(self, file: ProblemFile) -> None:
        self._file = file
        self._seen: list[tuple[torch.Tensor, ...]] = []
        """The outputs of the kinds of inputs that were tried."""

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The file's own kind of inputs, and those of ``KINDS`` for which the reference is finite."""
        if not self._file.changes_inputs:
            return KINDS[:1]
        for tensors in self._tried():
            seen = {kind: self._finite_outputs(tensors, kind) for kind in KINDS}
            found = {kind: outputs for kind, outputs in seen.items() if outputs is not None}
            if KINDS[0] in found:
                self._seen = [*found.values()]
                return tuple(found)
        return KINDS[:1]

    def is_constant(self) -> bool:
        """Whether the reference has returned the same for other inputs; large ones are not drawn anew for it."""
        seen, self._seen = self._seen, []
        if len(seen) < 2 and self._file.cases[0].nbytes <= _PROBED_BYTES:
            seen = [
                outputs for one in self._two_draws() if (outputs := self._finite_outputs(one, KINDS[0])) is not None
            ]
        return len(seen) > 1 and all(same_outputs(seen[0], other) for other in seen[1:])

    def _tried(self) -> Iterator[list[torch.Tensor]]:
        """Tensors on the CPU to try kinds on: a case's own if they are small, else with cut batches."""
        case, generator = self._file.cases[0], torch.Generator("cpu").manual_seed(_TRIED_SEED)
        count = self._file.inputs
        if case.nbytes <= _PROBED_BYTES:
            yield self._file.draw(case, generator)
            return
        if not all(one.is_floating_point for one in case.dtypes[:count]):
            return
        batch = case.shapes[0][:1]
        every = [(_FEW, *shape[1:]) if batch and shape[:1] == batch else shape for shape in case.shapes[:count]]
        for shapes in (every, [every[0], *case.shapes[1:count]]):
            if 4 * sum(map(math.prod, shapes)) <= _PROBED_BYTES:
                drawn = [torch.rand(shape, generator=generator) for shape in shapes]
                yield [
                    *(one.to(dtype) for one, dtype in zip(drawn, case.dtypes, strict=False)),
                    *self._file.drawn_weights(),
                ]

    def _two_draws(self) -> list[list[torch.Tensor]]:
        """Inputs of the first case from two seeds, on the CPU; none if they are equal, or drawn on a GPU only."""
        seeds = (_TRIED_SEED, _OTHER_SEED)
        try:
            draws = [self._file.draw(self._file.cases[0], torch.Generator("cpu").manual_seed(seed)) for seed in seeds]
        except Exception:  # a file may draw by a kernel of its own
            return []
        return [] if all(torch.equal(one, other) for one, other in zip(*draws, strict=True)) else draws

    def _finite_outputs(self, tensors: Sequence[torch.Tensor], kind: str) -> tuple[torch.Tensor, ...] | None:
        """The reference's outputs for inputs of a kind, None if it refuses them, or is not finite."""
        file, generator = self._file, torch.Generator("cpu").manual_seed(_TRIED_SEED)
        try:
            returned = file.run(file.cases[0], of_kind(kind, tensors, file.inputs, generator))
            found = outputs_of(returned, file.file.path.name)
        except Exception:  # a reference may refuse inputs outside of its domain
            return None
        is_finite = all(bool(one.isfinite().all()) for one in found if one.is_floating_point())
        # a reference may write into a buffer of its own
        return tuple(one.clone() for one in found) if is_finite else None
