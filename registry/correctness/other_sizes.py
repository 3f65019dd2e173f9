"""Other sizes of a problem along each dynamic dimension, at which a plan bound for one size must be right, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..contract import Op
from ..device import Device
from ..problem import Problem

_MOST_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
"""The most bytes of one problem's floor: its float64 reference takes about 20 times as many, in 40 passes."""
_MEMORY_PART = 1 / 128
"""The most bytes of one problem's floor, as a part of the device's memory."""
_MOST_FLOP = {"cpu": 5e7, "cuda": 1e12}
MULTIPLE = 16
"""Compilers specialise on multiples of it: another size is a multiple if the first one is, as far as possible."""


@dataclass(frozen=True)
class OtherSize:
    """``problem`` differs in one dynamic dimension from ``home``, the problem that a plan is bound for."""

    home: Problem
    problem: Problem

    @property
    def is_larger(self) -> bool:
        return any(self.problem.dims[name] > size for name, size in self.home.dims.items() if isinstance(size, int))


def other_sizes(op: Op, problem: Problem, device: Device) -> Iterator[OtherSize]:
    """For each dynamic dimension a smaller size, and one two to four times as large, if the op accepts them.

    If these would take too much memory or time, ``home`` is a smaller problem than ``problem``.
    """
    for name in [name for name in problem.dims if name in op.dynamic]:
        # 3 times a size is a multiple of 16 only if the size is; 2 and 4 times may be so for other sizes
        for sizes in (_smaller, lambda size: (3 * size, 2 * size, 4 * size)):
            for home in _homes(op, problem):
                found = _first(op, home, name, sizes(int(home.dims[name])), device)
                if found is not None:
                    yield OtherSize(home, found)
                    break


def sizes_apart(problem: Problem, other: Problem) -> tuple[str, str]:
    """The dimensions in which two problems differ, for each as text: ``("rows=64", "rows=192")``."""
    names = [name for name, value in problem.dims.items() if other.dims[name] != value]
    first, second = (", ".join(f"{name}={each.dims[name]}" for name in names) for each in (problem, other))
    return first, second


def false_claim(name: str, home: Problem, problem: Problem, fault: str) -> str:
    """The message for an implementation that says ``any_size``, but whose run is wrong at another size."""
    size, other = sizes_apart(home, problem)
    return (
        f"{name} says any_size = True, but the run that bind() returned for {size} is wrong for {other}, where one that"
        f" is bound for {other} is right: {fault}. Take sizes from the tensors that the run is given, or say"
        " any_size = False"
    )


def _homes(op: Op, problem: Problem) -> Iterator[Problem]:
    """The problem, then smaller ones, each with its largest dynamic dimension halved once more."""
    home: Problem | None = problem
    while home is not None:
        yield home
        size, name = max((int(home.dims[name]), name) for name in op.dynamic)
        home = _first(op, home, name, _smaller(size))


def _first(op: Op, problem: Problem, name: str, sizes: Iterable[int], device: Device | None = None) -> Problem | None:
    """The problem with the first of ``sizes`` that the op accepts and that fits the device; None without one."""
    for size in sizes:
        try:
            found = op.problem_of({**problem.dims, name: size})
        except Exception:  # an op's check may raise anything for a problem that it does not have
            continue
        if device is None or _is_affordable(op, found, device):
            return found
    return None


def _smaller(size: int) -> Iterator[int]:
    """Half the size, a quarter and so on; multiples of 16 while above 16 if ``size`` is one, else never."""
    of_multiple = size % MULTIPLE == 0
    while size > 1:
        half = size // 2
        if of_multiple and half > MULTIPLE:
            half -= half % MULTIPLE
        elif not of_multiple and half % MULTIPLE == 0:
            half += 1
        size = half
        yield size


def _is_affordable(op: Op, problem: Problem, device: Device) -> bool:
    floor, kind = op.floor(problem), "cuda" if device.type == "cuda" else "cpu"
    return floor.bytes <= min(_MOST_BYTES[kind], _MEMORY_PART * device.memory_bytes) and floor.flop <= _MOST_FLOP[kind]
