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
    known: dict[str, Any] = {"len": len, "type": type, "map": map, "str": str, "exact": exact_items, **(names or {})}
    lines = [f"if len(launches) != {len(launches)}: return None"]
    lines += [f"{_listed([f'l{place}' for place in range(len(launches))])} = launches"] if launches else []
    for place, launch in enumerate(launches):
        lines += _launch_lines(place, launch, known, None if narrow is None else narrow[place])
        if most is not None:
            told = f"x{place} * y{place} * z{place} > {most[0]} or y{place} > {most[1]} or z{place} > {most[1]}"
            lines.append(f"if {told}: return None")
    lines.append(f"return ({_listed(texts)})")
    return function("numbers", "launches", lines, known)


def _launch_lines(place: int, launch: Launch, known: dict[str, Any], narrow: Collection[int] | None) -> list[str]:
    """Lines that return None for a launch of another form, and set variables to its extents and arguments."""
    own = f"l{place}"
    known |= {f"{own}_kernel": launch.kernel, f"{own}_shared": launch.shared_bytes, f"{own}_cluster": launch.cluster}
    extents = [f"{letter}{place}" for letter in "xyz"]
    given = [f"a{place}_{number}" for number in range(len(launch.args))]
    tests = [
        f"{own}.kernel is not {own}_kernel and {own}.kernel != {own}_kernel",
        f"{own}.shared_bytes != {own}_shared or {own}.cluster != {own}_cluster",
        f"len({own}.grid) != {len(launch.grid)} or len({own}.args) != {len(given)}",
        *_constants(own, launch, known),
    ]
    lines = [f"if {' or '.join(tests)}: return None"]
    lines += [f"{_listed(extents[: len(launch.grid)])} = {own}.grid"] if launch.grid else []
    lines += [f"{extent} = 1" for extent in extents[len(launch.grid) :]]
    tests = [f"(0 in {own}.grid) is not {0 in launch.grid}"]
    for number, (name, argument) in enumerate(zip(given, launch.args, strict=True)):
        known[f"{name}_was"] = argument
        if type(argument) is str:
            tests.append(f"{name} is not {name}_was and (type({name}) is not str or {name} != {name}_was)")
            continue
        known[f"{name}_type"] = type(argument)
        tests.append(f"type({name}) is not {name}_type")
        if narrow is not None and type(argument) is int:
            tests.append(f"(-2147483648 <= {name} < 2147483648) is not {fits_int32(argument)}")
            if number in narrow:
                tests.append(f"({name} % {FULL_ALIGNMENT} == 0) is not {argument % FULL_ALIGNMENT == 0}")
    lines += [f"{_listed(given)} = {own}.args"] if given else []
    return [*lines, f"if {' or '.join(tests)}: return None"]


def _constants(own: str, launch: Launch, known: dict[str, Any]) -> list[str]:
    """Conditions that are true if a launch's constants or options differ from those of ``launch`` to a compiler."""
    groups = {"constants": launch.constants, "options": launch.options}
    values = [value for group in groups.values() for value in group.values()]
    if not _PLAIN.issuperset(map(type, values)):
        # 0.0 equals -0.0, and equal items of a list may differ in type
        known |= {f"{own}_{name}": exact_items(group) for name, group in groups.items()}
        return [f"exact({own}.{name}) != {own}_{name}" for name in groups]
    known |= {f"{own}_{name}": dict(group) for name, group in groups.items()}
    known |= {f"{own}_names": [*launch.constants, *launch.options], f"{own}_kinds": [*map(type, values)]}
    return [
        *(f"{own}.{name} != {own}_{name}" for name in groups),
        # the types are compared in order, so the names must be in the order of launch
        f"[*{own}.constants, *{own}.options] != {own}_names",
        f"[*map(type, (*{own}.constants.values(), *{own}.options.values()))] != {own}_kinds",
    ]


def _listed(names: Collection[str]) -> str:
    return "".join(f"{name}, " for name in names)
