"""Groups of problems for the jobs of a plan: those that share compiled variants go together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tuning_db.queue.entries import QueuedProblem

from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.plans.plan import Draft
from ..problem import Problem
from ..tuner.planning.problems import ProblemPlan, plan
from ..tuner.stored_winners import problem_key

_ARCHITECTURES = {
    "A100": "sm_80", "A30": "sm_80", "A10": "sm_86", "A40": "sm_86", "RTX A": "sm_86", "RTX 30": "sm_86",
    "L4": "sm_89", "RTX 40": "sm_89", "H100": "sm_90", "H200": "sm_90", "H800": "sm_90", "H20": "sm_90",
    "GH200": "sm_90", "B200": "sm_100", "B300": "sm_100", "RTX 50": "sm_120", "MI300": "gfx942",
}  # fmt: skip
"""Part of a GPU's name -> its architecture; of several that fit the longest counts. It decides about groups alone."""

_MOST_TOLD = 2000
"""Problems of an op above which only static dimensions tell what is shared: planning takes 10 ms each."""

Variants = Mapping[Problem, frozenset[str]]
"""Keys of the variants that the defaults of a problem's implementations compile."""


def grouped(
    problems: Sequence[Problem],
    counts: Mapping[Problem, int],
    catalog: Catalog,
    most: int,
    variants: Variants | None = None,
) -> list[list[QueuedProblem]]:
    """The problems in groups of one op that share compiled variants; at most ``most`` in each.

    Problems with equal static dimensions share nearly all. With ``variants``, a group with room for more takes the
    problem of other static dimensions that shares most variants with its problems, if any does.
    """
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        key = problem_key(catalog.op(problem.op), problem)
        alike.setdefault((problem.op, key.static_key), []).append(problem)
    pieces = [group[start : start + most] for group in alike.values() for start in range(0, len(group), most)]
    return [
        [QueuedProblem(one.op, dict(one.dims), counts.get(one, 0)) for one in piece]
        for piece in (pieces if variants is None else _joined(pieces, most, variants))
    ]


def _joined(pieces: Sequence[Sequence[Problem]], most: int, variants: Variants) -> list[list[Problem]]:
    """Pieces with room for more, joined with those that share most variants with them."""
    keys = {number: frozenset().union(*(variants.get(one, ()) for one in piece)) for number, piece in enumerate(pieces)}
    holders: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        for key in keys[number]:
            holders[piece[0].op, key].append(number)
    left, found = dict.fromkeys(range(len(pieces))), []
    while left:
        number = next(iter(left))
        del left[number]
        group, own = list(pieces[number]), set(keys[number])
        while (other := _nearest(group[0].op, own, holders, left, most - len(group), pieces)) is not None:
            del left[other]
            group += pieces[other]
            own |= keys[other]
        found.append(group)
    return found


def _nearest(
    op: str,
    own: Iterable[str],
    holders: Mapping[tuple[str, str], Sequence[int]],
    left: Mapping[int, None],
    room: int,
    pieces: Sequence[Sequence[Problem]],
) -> int | None:
    """The piece that shares most variants with ``own`` and for which there is room; the first of equals."""
    shared = Counter(number for key in own for number in holders[op, key] if number in left)
    fitting = [(-count, number) for number, count in shared.items() if len(pieces[number]) <= room]
    return min(fitting)[1] if fitting else None


def variants_of_defaults(
    problems: Sequence[Problem], catalog: Catalog, device: Device, implementations: Sequence[str]
) -> Variants:
    """The variants of each problem's defaults on a device, which need not be here."""
    of_op = Counter(problem.op for problem in problems)
    told = [problem for problem in problems if of_op[problem.op] <= _MOST_TOLD]
    return {planned.problem: _of_defaults(planned) for planned in plan(told, catalog, device, implementations)}


def device_named(name: str) -> Device | None:
    """The device of a model: one that is here, else one of its architecture without hardware; None if unknown."""
    if name == "cpu":
        return Device.of("cpu")
    here = next((device for device in Device.visible() if device.name == name), None)
    fitting = [part for part in _ARCHITECTURES if part in name]
    if here is not None or not fitting:
        return here
    return Device.without_hardware(_ARCHITECTURES[max(fitting, key=len)])


def _of_defaults(planned: ProblemPlan) -> frozenset[str]:
    found: set[str] = set()
    for candidate in planned.defaults():
        try:
            draft = Draft.of(planned.op, candidate, planned.problem, planned.arguments, planned.device)
            found |= {variant.key for variant in draft.variants()}
        except Exception:  # a stranger's code: its fault is told by the trial that meets it
            continue
    return frozenset(found)
