"""Faults that are told once: those of one kind in one line, with an example and the number of places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# the line of a file tells faults apart, and a number in a word, as in float16, is part of its name
_NUMBER = re.compile(
    r"(?P<kept>[\w./-]+\.[a-z]\w*:\d+(?::\d+)?)|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:x\d+)*(?!\w)"
)

_INPUTS = re.compile(r"^(\w+) inputs: ")


@dataclass(frozen=True)
class Place:
    """Where a fault was seen: ``told`` stands before the fault, and the others are counted.

    ``group``: faults of another group are another line.
    """

    told: str = ""
    problem: str = ""
    config: str = ""
    group: str = ""


def kind_of(fault: str) -> str:
    """``fault`` without its numbers and the inputs that showed it: faults of one kind differ in nothing else."""
    return _NUMBER.sub(lambda found: found["kept"] or "0", _INPUTS.sub("", fault))


def folded(faults: Iterable[tuple[Place, str]]) -> list[str]:
    """A line for each kind of fault, ``place: fault (3 problems, 4 configs)``, with the first of the kind."""
    kinds: dict[tuple[str, str], list[tuple[Place, str]]] = {}
    for place, fault in faults:
        kinds.setdefault((place.group, kind_of(fault)), []).append((place, fault))
    return [_line(found) for found in kinds.values()]


def _line(found: Sequence[tuple[Place, str]]) -> str:
    place, fault = found[0]
    counted = {"problem": {place.problem for place, _ in found}, "config": {place.config for place, _ in found}}
    inputs = list(dict.fromkeys(kind[1] for _, each in found if (kind := _INPUTS.match(each))))
    counts = [f"{len(values)} {noun}s" for noun, values in counted.items() if len(values) > 1]
    if len(inputs) > 1:
        counts.append(f"{' and '.join(inputs)} inputs")
    told = ", ".join(counts) or (f"x {len(found)}" if len(found) > 1 else "")
    return f"{place.told and f'{place.told}: '}{fault}{told and f' ({told})'}"
