"""Where a winner transfers along a static dimension: its code at both ends of a range, run on the ends that need it.

Compilers specialise on how far a size is divisible, up to 16. So the ends are looked at once for each class of sizes
with the same divisibility: where both ends of a class take the same code, that code is verified at the least and the
greatest size that take it. What was not seen to be right there is not among the codes of the transfer, and dispatch
does not run it.
"""

from __future__ import annotations

from collections.abc import Callable

from tuning_db import Transfer

from ...arguments.inputs import arguments_of
from ...contract import Op, checked_range
from ...correctness.range_ends import ends_by_divisibility
from ...device import Device
from ...dispatch.plans.plan import Candidate, Draft
from ...errors import RegistryError
from ...problem import Problem
from .verdicts import WrongError

Check = Callable[[Problem], None]
"""Runs the candidate on a problem; raises WrongError where it is wrong."""


def transfer_along(
    name: str, op: Op, candidate: Candidate, problem: Problem, device: Device, check: Check
) -> tuple[Transfer | None, str]:
    """Where the candidate, tuned for ``problem``, may answer for other sizes of dimension ``name``; or why nowhere.

    None where nothing was run; a transfer to the problem's own size alone where the candidate is wrong at another one.
    """
    own = int(problem.dims[name])
    low, high = checked_range(name, op.transfers[name], own)
    by_code: dict[str, list[int]] = {}
    problems: dict[int, Problem] = {}
    for pair in ends_by_divisibility(low, high):
        found = [(size, *_code_at(op, candidate, problem, name, size, device)) for size in pair]
        codes = {code for _, _, code in found}
        if len(codes) == 1 and (code := codes.pop()) is not None:
            by_code.setdefault(code, []).extend(pair)
            problems |= {size: there for size, there, _ in found if there is not None}
    if not by_code:
        return None, f"it runs the same code at both ends of no range of {name} from {low} to {high}"
    sizes = {end for sizes in by_code.values() for end in (min(sizes), max(sizes))}
    for size in sorted(sizes):
        try:
            check(problems[size])
        except WrongError as fault:
            return Transfer(own, own), f"{name}={size}: {fault.status}: {fault.message}"
    return Transfer(min(sizes), max(sizes), tuple(sorted(by_code))), ""


def _code_at(
    op: Op, candidate: Candidate, problem: Problem, name: str, size: int, device: Device
) -> tuple[Problem | None, str | None]:
    """The problem at another size and the code that the candidate runs there; None where one of them does not exist."""
    try:
        there = op.problem_of({**problem.dims, name: size})
    except RegistryError:
        return None, None
    implementation, config = candidate.implementation, candidate.config
    if any(True for _ in implementation.unsupported(there, device)):
        return there, None
    if implementation.space(there, device).violations(config):
        return there, None
    return there, Draft.of(op, candidate, there, arguments_of(op, there), device).code
