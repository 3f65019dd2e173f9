"""Generated functions that read the extents and numbers of launches which differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..generated_code import function
from ..implementation import Launch
from ..problem import FULL_ALIGNMENT, exact_items, fits_int32

LaunchNumbers = Callable[[tuple[Launch, ...]], tuple[Any, ...] | None]
"""``numbers(launches)``: their extents and numbers; None for launches that may need other compiled code."""

_PLAIN = frozenset({int, str, bool})
"""Types whose equal values are interchangeable in a kernel's code (unlike 1 and True, or 0.0 and -0.0)."""


def numbers_of(
    launches: Sequence[Launch],
    texts: Collection[str],
    names: Mapping[str, Any] | None = None,
    narrow: Sequence[Collection[int]] | None = None,
    most: tuple[int, int] | None = None,
) -> LaunchNumbers:
    """A function that returns the values of ``texts`` for launches of the form of ``launches``.

    Its argument is a tuple of launches. It returns None unless these clearly have equal ``launch_forms.launch_key``.

    texts   expressions of the extents ``x0``, ``y0`` and ``z0`` and of the numbers ``a0_2`` (argument 2) of launch 0,
            and so on, of ``launches`` and of ``names``
    narrow  for each launch the places of arguments whose numbers are compiled for multiples of 16; code then depends on
            whether a number fits in 32 bits, too. None where code depends on no number
    most    the most programs of a launch, and the greatest second and third extent
    """
    known: dict[str, Any] = {one.__name__: one for one in (type, int, str, bool, ValueError)}
    known |= {"exact": exact_items, **(names or {})}
    unpacked = [f"l{place}" for place in range(len(launches))]
    lines = _unpacking(unpacked, "launches")
    for place, launch in enumerate(launches):
        lines += _launch_lines(place, launch, known, None if narrow is None else narrow[place])
        if most is not None and launch.grid:
            extents = [f"{letter}{place}" for letter, _ in zip("xyz", launch.grid, strict=False)]
            told = [f"{' * '.join(extents)} > {most[0]}", *(f"{extent} > {most[1]}" for extent in extents[1:])]
            lines.append(f"if {' or '.join(told)}: return None")
    lines.append(f"return ({_listed(texts)})")
    return function("numbers", "launches", lines, known)


def _unpacking(names: Sequence[str], given: str) -> list[str]:
    """Lines that set variables to the items of ``given``, and return None for another number of items."""
    unpack = f"{_listed(names)} = {given}" if names else f"[] = {given}"
    return [f"try: {unpack}", "except ValueError: return None"]


def _launch_lines(place: int, launch: Launch, known: dict[str, Any], narrow: Collection[int] | None) -> list[str]:
    """Lines that return None for a launch of another form, and set variables to its extents and arguments."""
    own = f"l{place}"
    known |= {f"{own}_kernel": launch.kernel, f"{own}_shared": launch.shared_bytes, f"{own}_cluster": launch.cluster}
    extents = [f"{letter}{place}" for letter in "xyz"]
    given = [f"a{place}_{number}" for number in range(len(launch.args))]
    tests = [
        f"{own}.kernel is not {own}_kernel and {own}.kernel != {own}_kernel",
        f"{own}.shared_bytes != {own}_shared or {own}.cluster != {own}_cluster",
        *_constants(own, launch, known),
    ]
    lines = [f"{own}_c, {own}_o = {own}.constants, {own}.options", f"if {' or '.join(tests)}: return None"]
    lines += _unpacking(extents[: len(launch.grid)], f"{own}.grid")
    lines += [f"{extent} = 1" for extent in extents[len(launch.grid) :]]
    tests = [f"not {extent}" for extent in extents[: len(launch.grid)]]
    if 0 in launch.grid:
        tests = [f"({' and '.join(extents[: len(launch.grid)])})"]
    for number, (name, argument) in enumerate(zip(given, launch.args, strict=True)):
        known[f"{name}_was"] = argument
        if type(argument) is str:
            tests.append(f"{name} is not {name}_was and (type({name}) is not str or {name} != {name}_was)")
            continue
        known[f"{name}_type"] = type(argument)
        tests.append(f"type({name}) is not {name}_type")
        if narrow is not None and type(argument) is int:
            # 0 or -1 for an int of 32 bits
            tests.append(f"{name} >> 31 {'not in' if fits_int32(argument) else 'in'} (0, -1)")
            if number in narrow:
                tests.append(f"{name} % {FULL_ALIGNMENT}{'' if argument % FULL_ALIGNMENT == 0 else ' == 0'}")
    lines += _unpacking(given, f"{own}.args")
    return [*lines, f"if {' or '.join(tests)}: return None"] if tests else lines


def _constants(own: str, launch: Launch, known: dict[str, Any]) -> list[str]:
    """Conditions that are true if a launch's constants or options differ from those of ``launch`` to a compiler.

    In the text the launch's are ``l0_c`` and ``l0_o``.
    """
    groups = {f"{own}_c": launch.constants, f"{own}_o": launch.options}
    values = [value for group in groups.values() for value in group.values()]
    if not _PLAIN.issuperset(map(type, values)):
        # 0.0 equals -0.0, and equal items of a list may differ in type
        known |= {f"{name}_was": exact_items(group) for name, group in groups.items()}
        return [f"exact({name}) != {name}_was" for name in groups]
    tests = []
    for name, group in groups.items():
        known |= {f"{name}_was": dict(group), f"{name}_names": [*group]}
        tests.append(f"{name} != {name}_was")
        if len(group) > 1:
            tests.append(f"[*{name}] != {name}_names")
        # each by its name: a list of all types takes twice as long
        tests += [f"type({name}[{key!r}]) is not {type(value).__name__}" for key, value in group.items()]
    return tests


def _listed(names: Collection[str]) -> str:
    return "".join(f"{name}, " for name in names)
