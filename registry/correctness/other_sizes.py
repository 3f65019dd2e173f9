"""Other sizes of a problem along each dynamic dimension, at which a plan bound for one size must be right, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..contract import Op
from ..device import Device
from ..problem import Problem

MULTIPLE = 16
"""Compilers specialise on multiples of it: another size is a multiple if the first one is, as far as possible."""
_TILE = 1024
"""Kernels may have other code for whole tiles, of a power of two of elements up to this, than for a part of one."""


@dataclass(frozen=True)
class ProblemLimits:
    """The most that a problem may cost which is made up for a check.

    ``bytes`` and ``flop`` of its floor, by kind of device; ``memory_part``: its bytes, as a part of the memory.
    """

    bytes: Mapping[str, int]
    memory_part: float
    flop: Mapping[str, float]

    def hold(self, op: Op, problem: Problem, device: Device, part: float = 1.0) -> bool:
        """True if a problem costs at most that part of each limit."""
        floor, kind = op.floor(problem), "cuda" if device.type == "cuda" else "cpu"
        most = min(self.bytes[kind], self.memory_part * device.memory_bytes)
        return floor.bytes <= part * most and floor.flop <= part * self.flop[kind]


# a float64 reference takes about 20 times as many bytes as the floor, in 40 passes
_LIMITS = ProblemLimits({"cpu": 1 << 20, "cuda": 64 << 20}, 1 / 128, {"cpu": 5e7, "cuda": 1e12})


@dataclass(frozen=True)
class OtherSize:
    """``problem`` differs in one dynamic dimension from ``home``, the problem that a plan is bound for."""

    home: Problem
    problem: Problem

    @property
    def is_larger(self) -> bool:
        """Whether the dimension is at least twice as large as the home's."""
        sizes = ((size, self.problem.dims[name]) for name, size in self.home.dims.items())
        return any(int(other) >= 2 * int(size) for size, other in sizes if other != size)


def other_sizes(op: Op, problem: Problem, device: Device, part: float = 1.0) -> Iterator[OtherSize]:
    """For each dynamic dimension three other sizes, as far as the op has them.

    A smaller one and one two to four times as large, each a multiple of 16 where the problem's own is: the smaller one
    of whole tiles then, the larger one with a part of a tile. Then, above the problem's own, one of whole tiles where
    that is no multiple of 16, and one that is none where it is.

    Where one takes too much memory or time, or more than that part of what it may take, its home is a smaller problem.
    """
    for name in [name for name in problem.dims if name in op.dynamic]:
        for sizes in (_smaller, _larger, _otherwise_divisible):
            for home in _homes(op, problem):
                found = _first(op, home, name, sizes(int(home.dims[name])), device, part)
                if found is not None:
                    yield OtherSize(home, found)
                    break


def sizes_apart(problem: Problem, other: Problem) -> tuple[str, str]:
    """The dimensions in which two problems differ, for each as text: ``("rows=64", "rows=192")``."""
    names = [name for name, value in problem.dims.items() if other.dims[name] != value]
    first, second = (", ".join(f"{name}={each.dims[name]}" for name in names) for each in (problem, other))
    return first, second


def false_claim(name: str, home: Problem, problem: Problem, which: str, fault: str) -> str:
    """The message for an implementation that says ``any_size``, but whose run is wrong at another size.

    ``which``: the inputs, e.g. "strided"; "" for row-major ones of the op's first kind.
    """
    size, other = sizes_apart(home, problem)
    other += f" with {which} inputs" if which else ""
    return (
        f"{name} says any_size = True, but the run that bind() returned for {size} is wrong for {other}, where one that"
        f" is bound for {other} is right: {fault}. Take sizes and strides from the tensors that the run is given,"
        " or say any_size = False"
    )


def _homes(op: Op, problem: Problem) -> Iterator[Problem]:
    """The problem, then smaller ones, each with its largest dynamic dimension halved once more."""
    home: Problem | None = problem
    while home is not None:
        yield home
        size, name = max((int(home.dims[name]), name) for name in op.dynamic)
        home = _first(op, home, name, _smaller(size))


def _first(
    op: Op, problem: Problem, name: str, sizes: Iterable[int], device: Device | None = None, part: float = 1.0
) -> Problem | None:
    """The problem with the first of the sizes that the op has, and that the device is large enough for."""
    for size in sizes:
        try:
            found = op.problem_of({**problem.dims, name: size})
        except Exception:  # an op's check may raise anything for a problem that it does not have
            continue
        if device is None or _LIMITS.hold(op, found, device, part):
            return found
    return None


def _smaller(size: int) -> Iterator[int]:
    """Half the size, a quarter and so on: whole tiles while above 16 if the size is a multiple of 16, else none."""
    of_multiple = size % MULTIPLE == 0
    while size > 1:
        half = size // 2
        if of_multiple and half > MULTIPLE:
            half -= half % _tile(half)
        elif not of_multiple and half % MULTIPLE == 0:
            half += 1
        size = half
        yield size


def _larger(size: int) -> Iterable[int]:
    """Two to four times the size: about three times, where the op has that, is a multiple of 16 only where the size is.

    Of 32 it is none: where vectors fill a tile in part, a kernel may run other code than in a whole one.
    """
    times = (3 * size, 2 * size, 4 * size)
    return times if size % (2 * MULTIPLE) else (3 * size + MULTIPLE, *times)


def _otherwise_divisible(size: int) -> Iterable[int]:
    return (size + 1 if size % MULTIPLE == 0 else size + _tile(size) - size % _tile(size),)


def _tile(size: int) -> int:
    """The largest tile of a power of two, from 16 to 1024, of which a size has a whole one."""
    return max(MULTIPLE, min(1 << (size.bit_length() - 1), _TILE))
