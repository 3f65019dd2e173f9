"""The compiled codes to verify before a winner may answer for other sizes of a static dimension.

Compilers specialise on the divisibility of a size by powers of two, up to 16. So each class of equally divisible sizes
is looked at once, at both ends of the range: if both ends compile to equal code, that code is to be verified at the
smallest and the largest size that use it. No other code transfers: dispatch does not run it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...arguments.inputs import arguments_of
from ...artifact import Variant, code_of
from ...contract import Op, checked_range
from ...correctness.range_ends import ends_by_divisibility
from ...device import Device
from ...dispatch.plans.plan import Candidate
from ...errors import RegistryError
from ...problem import Problem
from .twin import of_few_elements
from .variants import variants_at


@dataclass(frozen=True)
class TransferCode:
    """A compiled code that a candidate runs at sizes from ``low`` to ``high``, and the problems that verify it.

    ``problems``: one at each of the two sizes, with as few elements as run the code. ``variants``: the parts of the
    code.
    """

    code: str
    low: int
    high: int
    problems: tuple[Problem, Problem]
    variants: tuple[Variant, ...]


def transfer_codes(
    name: str, op: Op, candidate: Candidate, problem: Problem, device: Device
) -> tuple[list[TransferCode], str]:
    """The codes to verify before a winner of ``problem`` may answer for other sizes of ``name``, or why none."""
    low, high = checked_range(name, op.transfers[name], int(problem.dims[name]))
    sizes: dict[str, list[int]] = {}
    built: dict[str, tuple[Variant, ...]] = {}
    for pair in ends_by_divisibility(low, high):
        found = [_variants(op, candidate, _sized(op, problem, name, size), device) for size in pair]
        codes = [None if variants is None else code_of(variants) for variants in found]
        if (code := codes[0]) is not None and code == codes[1] and found[0] is not None:
            sizes.setdefault(code, []).extend(pair)
            built[code] = found[0]

    def few(size: int, code: str) -> Problem:
        there = op.problem_of({**problem.dims, name: size})
        smaller = of_few_elements(op, there)
        # a candidate that compiles nothing may choose its code by size, which cannot be seen here
        variants = _variants(op, candidate, smaller, device) if code else None
        return smaller if variants is not None and code_of(variants) == code else there

    if not sizes:
        return [], f"it runs the same code at both ends of no range of {name} from {low} to {high}"
    ends = {code: (min(each), max(each)) for code, each in sizes.items()}
    return [
        TransferCode(code, first, last, (few(first, code), few(last, code)), built[code])
        for code, (first, last) in ends.items()
    ], ""


def _sized(op: Op, problem: Problem, name: str, size: int) -> Problem | None:
    try:
        return op.problem_of({**problem.dims, name: size})
    except RegistryError:
        return None


def _variants(op: Op, candidate: Candidate, problem: Problem | None, device: Device) -> tuple[Variant, ...] | None:
    """The variants that the candidate compiles for a problem; None where the op has no such problem, or it refuses."""
    return None if problem is None else variants_at(op, candidate, problem, arguments_of(op, problem), device)
