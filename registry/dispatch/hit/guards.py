"""The guard of one table entry: True if a call's tensors match those that the entry was resolved for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ...arguments.schema import tensors_in
from ...arguments.specs import FULL_ALIGNMENT, Arguments, alignment_of, specs_in
from ...generated_code import function
from ..shared_memory import share_memory, span_bytes
from ..torch_side.states import capturing
from ..torch_side.torch_private import TorchCheck, tensor_guard

Condition = Callable[..., bool]
"""A function of a call's tensors that must return True for the entry to hold."""


_NONE = type(None)


def matcher(
    given: Sequence[torch.Tensor | None], conditions: Sequence[Condition] = (), written: tuple[int, ...] = ()
) -> TorchCheck:
    """``match(*tensors)``: True if the tensors match ``given``, of the same number; None is a missing tensor.

    Tensors must agree in all properties that ``torch_private.native_guard`` checks. Nested tensors must not be passed.
    ``written``: places of tensors that are written to, which must not share memory with others.
    """
    twice = len({*map(id, given)}) < len(given)
    written = written if len(written) > 1 else ()
    if not twice and not conditions and not written and _NONE not in map(type, given):
        return tensor_guard(*given)
    tensors = [value for value in given if value is not None]
    twice = twice and len({*map(id, tensors)}) < len(tensors)
    # torch's guard refuses a tensor that is given twice: then each tensor gets a guard of its own
    checks = [tensor_guard(tensor) for tensor in tensors] if twice else [tensor_guard(*tensors)]
    alignments, others = _split(conditions, len(tensors))
    make = _maker(tuple(value is not None for value in given), twice, alignments, len(others), written)
    # beyond the longer of two nothing is shared, and sizes and strides are the same at every hit
    reach = max([span_bytes(one) for place in written if (one := given[place]) is not None], default=0)
    match: TorchCheck = make(reach, *checks, *others)
    return match


def quick_matcher(count: int, conditions: Sequence[Condition]) -> Callable[..., TorchCheck]:
    """``matcher`` as ``make(*tensors)``, for so many tensors: none is missing, given twice or written to."""
    if not conditions:
        return tensor_guard
    alignments, others = _split(conditions, count)
    make = _maker((True,) * count, False, alignments, len(others), ())
    return lambda *tensors: make(0, tensor_guard(*tensors), *others)


_Alignments = tuple[tuple[int, ...], ...]
"""For each condition of alignment the alignment in bytes of each tensor."""


def _split(conditions: Sequence[Condition], count: int) -> tuple[_Alignments, list[Condition]]:
    """The conditions of alignment, as data, and the others."""
    alignments = [one.alignments for one in conditions if isinstance(one, AlignedLike)]
    if aligned in conditions:
        alignments.append((FULL_ALIGNMENT,) * count)
    return tuple(alignments), [one for one in conditions if one is not aligned and not isinstance(one, AlignedLike)]


@lru_cache(maxsize=256)
def _maker(
    present: tuple[bool, ...], twice: bool, alignments: _Alignments, conditions: int, written: tuple[int, ...]
) -> Callable[..., TorchCheck]:
    """``make(*checks, *conditions)``, which returns ``match``: flat, since a loop would cost more than the guard.

    The function checks ``alignments`` itself.
    """
    names = [f"t{place}" for place in range(len(present))]
    tensors = [name for name, there in zip(names, present, strict=True) if there]
    given = ", ".join(tensors)
    demands = [f"{name} is None" for name, there in zip(names, present, strict=True) if not there]
    checks = [f"check{place}" for place in range(len(tensors) if twice else 1)]
    demands += [f"{check}({tensors[place]})" for place, check in enumerate(checks)] if twice else [f"check0({given})"]
    for each in alignments:
        pairs = list(zip(tensors, each, strict=True))
        full = " | ".join(f"{name}.data_ptr()" for name, bytes_ in pairs if bytes_ == FULL_ALIGNMENT)
        demands += [f"not ({full}) & {FULL_ALIGNMENT - 1}"] if full else []
        # the lowest bit of an address that is set tells the alignment
        demands += [
            f"{name}.data_ptr() & {2 * bytes_ - 1} == {bytes_}" for name, bytes_ in pairs if bytes_ < FULL_ALIGNMENT
        ]
    # torch's guard refuses one tensor given twice, but not two views of one memory: 0.25 µs
    for one, other in itertools.combinations([names[place] for place in written], 2):
        distance = f"abs({one}.data_ptr() - {other}.data_ptr())"
        demands.append(f"({distance} >= reach or not shared({one}, {other}))")
    others = [f"condition{place}" for place in range(conditions)]
    demands += [f"{other}({given})" for other in others]
    lines = [f"def match({', '.join(names)}):", f"    return {' and '.join(demands)}", "return match"]
    return function("make", ", ".join(["reach", *checks, *others]), lines, {"shared": share_memory})


def aligned(*given: Any) -> bool:
    """True if every tensor starts at a multiple of 16 bytes."""
    return all(value.data_ptr() % FULL_ALIGNMENT == 0 for value in tensors_in(given))


def misaligned(*given: Any) -> bool:
    """True if a tensor starts elsewhere than at a multiple of 16 bytes."""
    return not aligned(*given)


@dataclass(frozen=True)
class AlignedLike:
    """The condition that each tensor has an alignment of so many bytes, at most 16: an implementation may ask for 8."""

    alignments: tuple[int, ...]

    @classmethod
    def of(cls, arguments: Arguments) -> AlignedLike:
        """The condition of calls whose tensors are aligned as those of ``arguments``."""
        return cls(tuple([spec.alignment for value in arguments.unrecorded.values() for spec in specs_in(value)]))

    def __call__(self, *given: Any) -> bool:
        return tuple([alignment_of(tensor.data_ptr()) for tensor in tensors_in(given)]) == self.alignments


def not_capturing(*given: Any) -> bool:
    """True if no CUDA graph is being captured from the current stream of the tensors' GPU."""
    return not capturing(tensors_in(given))


def determinism_not_asked(*_given: Any) -> bool:
    """True if ``torch.use_deterministic_algorithms`` is off."""
    return not torch.are_deterministic_algorithms_enabled()


def determinism_asked(*_given: Any) -> bool:
    """True if ``torch.use_deterministic_algorithms`` is on."""
    return torch.are_deterministic_algorithms_enabled()
