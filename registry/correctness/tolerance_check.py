"""Check of an op's own tolerance, which must refuse results that were not computed.

These results need no computation: all zeros, one number everywhere, the result of a previous call, and for a mutated
argument its old content. If a tolerance accepts one of them on all the op's examples and every kind of inputs, an
implementation that returns it would win. It is allowed for a mutated argument whose right result does not depend on the
inputs, such as a workspace that is reset.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..arguments.schema import tensors_in
from ..contract import Op
from ..errors import InvalidDefinitionError, RegistryError
from ..faults.device_faults import broken_context, out_of_memory
from ..problem import Problem, dtype_name
from .bits import same_bits
from .bounds import bounds_of
from .numerics import reference64, results_of
from .tolerance_evidence import PREVIOUS, UNCHANGED, Case, Seen, SeenByCompare
from .tolerance_notes import is_noted, known_of, write_note

_SEEDS = (1, 2)
_CPU = torch.device("cpu")
_HANDY_BYTES = 256 << 10
"""Examples up to this size are checked first, the largest of them first: one such case usually decides."""
_FEW = 8
"""The least size of a reduced dynamic dimension: a single row may have one result for all inputs."""


def refuse_blind(op: Op) -> bool:
    """Raise InvalidDefinitionError if the op's tolerance accepts, on all its examples, a result that was not computed.

    Returns False if the examples decide nothing: there are none, or the op fails on all of them. Passing is noted in
    the user's cache by the op's source, so that an op is checked once per machine. The box's ops are not checked here,
    but by their tests.
    """
    from ..contracts import BOX

    if any(op is ours for ours in BOX):
        return True
    known = known_of(op)
    if known.examples is None:
        known.examples = _examples_show(op)
    return known.examples


def refuse_unseen(op: Op, problem: Problem, device: torch.device) -> None:
    """Raise InvalidDefinitionError as ``refuse_blind`` does, on ``problem``, for an op whose examples show nothing.

    Such an op has no examples, or fails on all of them, e.g. because it needs ``device``. The problem is checked on
    ``device`` with its dynamic dimensions reduced; if that decides nothing, in full; then reduced on the CPU. Once a
    problem of a dtype has passed, others of that dtype are not checked. A problem decides nothing if its right result
    is itself zero, constant or equal for all inputs.
    """
    if refuse_blind(op) or _is_known_sound(op, _dtype(problem)):
        return
    small = _smaller(op, problem)
    looks = ((small, device), (problem, device), (small, _CPU))
    for one, place in dict.fromkeys(looks):
        if _problem_shows(op, one, place):
            return


def blind_spots(op: Op, problems: Sequence[Problem]) -> list[str]:
    """Results, in words, that were not computed but are accepted on all these problems and kinds of inputs."""
    return _spots(op, _seen(op, problems, _CPU), may_be_degenerate=_mutated(op))


def _examples_show(op: Op) -> bool:
    examples = _examples(op)
    keys = [problem.key for problem in examples]
    if examples and is_noted(op, keys):
        return True
    results = _seen(op, examples, _CPU)
    _refuse(op, _spots(op, results, may_be_degenerate=_mutated(op)))
    if _showed(results):
        write_note(op, keys)
    return _showed(results)


def _problem_shows(op: Op, problem: Problem, device: torch.device) -> bool:
    """True if the op passes on the problem, False if it decides nothing. Raises InvalidDefinitionError if it fails."""
    known = known_of(op)
    if (problem, device) not in known.shown:
        results = _seen(op, [problem], device)
        _refuse(op, _spots(op, results, may_be_degenerate=op.parsed.results))
        right = _showed(results) and not _spots(op, results)
        if right:
            known.sound.add(_dtype(problem))
            write_note(op, [_dtype(problem)])
        known.shown[problem, device] = right
    return known.shown[problem, device]


def _is_known_sound(op: Op, dtype: str) -> bool:
    known = known_of(op)
    if dtype not in known.sound and is_noted(op, [dtype]):
        known.sound.add(dtype)
    return dtype in known.sound


def _dtype(problem: Problem) -> str:
    return str(problem.dims.get("dtype", "any dtype"))


def _refuse(op: Op, spots: Sequence[str]) -> None:
    if spots:
        raise InvalidDefinitionError(
            f"op {op.name!r}: {'; '.join(spots)}",
            hint="a tolerance must refuse what was not computed, and so must a compare: lower rtol, atol or the scale,"
            " or let inputs() and examples make outputs that differ",
        )


def _smaller(op: Op, problem: Problem) -> Problem:
    """The problem with its largest dynamic dimensions halved to ``_HANDY_BYTES``, as far as the op accepts that."""
    names = set(op.dynamic)
    while names and _bytes(op, problem) > _HANDY_BYTES:
        name = max(sorted(names), key=lambda name: int(problem.dims[name]))
        size = int(problem.dims[name]) // 2
        if size < _FEW:
            break
        try:
            smaller = op.problem_of({**problem.dims, name: size})
            op.floor(smaller)
        except Exception:  # an op's check or floor may raise anything for a size that it does not accept
            names.remove(name)
        else:
            problem = smaller
    return problem


def _bytes(op: Op, problem: Problem) -> int:
    """Bytes of the problem by the op's floor; 0 where the floor raises, which ``check_op`` reports."""
    try:
        return op.floor(problem).bytes
    except Exception:
        return 0


@torch.no_grad()
def _seen(op: Op, problems: Sequence[Problem], device: torch.device) -> dict[tuple[str, str], Seen | SeenByCompare]:
    """Evidence about every result, by name and dtype, from these problems; empty if the op fails on all of them.

    Further cases of a dtype are skipped once all results are decided. Raises if a GPU is out of memory or broken.
    """
    results: dict[tuple[str, str], Seen | SeenByCompare] = {}
    looked: set[str] = set()
    for problem, kind in _cases(op, problems):
        if results and _dtype(problem) in looked and all(seen.shows and not seen.found for seen in results.values()):
            continue
        try:
            _look(op, problem, kind, results, device)
            looked.add(_dtype(problem))
        except Exception as fault:  # an op that fails on its own examples: check_op tells
            if device.type != "cpu" and (out_of_memory(fault) or broken_context(fault)):
                raise
    return results


def _showed(results: Mapping[tuple[str, str], Seen | SeenByCompare]) -> bool:
    return any(seen.shows for seen in results.values())


def _mutated(op: Op) -> tuple[str, ...]:
    return op.parsed.results[len(op.parsed.outputs) :]


def _spots(
    op: Op, results: Mapping[tuple[str, str], Seen | SeenByCompare], *, may_be_degenerate: Collection[str] = ()
) -> list[str]:
    """The results that were accepted in every case, in words.

    Results named in ``may_be_degenerate`` are left out if their right values are zero, constant or old themselves.
    """
    accepted: dict[tuple[str, str], list[str]] = {}
    for (name, dtype), seen in results.items():
        for what in seen.found:
            if not (name in may_be_degenerate and seen.is_right(what)):
                accepted.setdefault((what, name), []).append(dtype)
    return [
        f"its {'compare' if name in op.compare else 'tolerance'} accepts {what} as {name} ({', '.join(dtypes)})"
        f" on {_judged_kinds(op, what)}"
        for (what, name), dtypes in accepted.items()
    ]


def _judged_kinds(op: Op, what: str) -> str:
    """The kinds of inputs on which ``what`` was judged: old results on the first alone, see ``_look``."""
    if what in {PREVIOUS, UNCHANGED}:
        return f"the kind of inputs that is timed, the first ({op.kinds[0]})"
    return f"every kind of inputs ({', '.join(op.kinds)})"


def _look(
    op: Op, problem: Problem, kind: str, results: dict[tuple[str, str], Seen | SeenByCompare], device: torch.device
) -> None:
    """Add one case to ``results``, which are unchanged after an exception."""
    values, others = (_drawn(op, problem, kind, seed, device) for seed in _SEEDS)
    # the first kind is the one that is timed; others, such as constants, may not differ from draw to draw
    timed = kind == op.kinds[0]
    drawn = timed and _differ(values, others)
    reference = reference64(op, values)
    right = results_of(op, values)
    dtypes = [result.dtype for result in right]
    # bounds by the tolerance alone, without the comparison with torch's own error
    bounds = bounds_of(op, problem, values, reference, (math.inf,) * len(reference), dtypes)
    old = op.results(op.reference(*others), values)
    cases = [
        Case.of(dtype, within, wide, stale if timed else None, drawn=drawn) if stale.numel() else None
        for dtype, within, wide, stale in zip(dtypes, bounds, reference, old, strict=True)
    ]
    for name, one, stale, case in zip(op.parsed.results, right, old, cases, strict=True):
        if not stale.numel():
            continue
        words = PREVIOUS if name in op.parsed.outputs else UNCHANGED
        seen = results.setdefault((name, dtype_name(one.dtype)), SeenByCompare() if name in op.compare else Seen(words))
        if isinstance(seen, SeenByCompare):
            accepts = partial(_accepts, op, problem, values, name, right, reference)
            seen.take_in(one, {words: stale} if timed else {}, accepts, drawn)
        elif case is not None:
            seen.take_in(case)


def _accepts(
    op: Op,
    problem: Problem,
    values: tuple[Any, ...],
    name: str,
    right: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    fake: torch.Tensor,
) -> bool:
    results = {**dict(zip(op.parsed.results, right, strict=True)), name: fake}
    references = dict(zip(op.parsed.results, reference, strict=True))
    try:
        faults = op.compare[name](problem, dict(zip(op.parsed.names, values, strict=True)), results, references)
        return not list(faults or ())
    except Exception:  # an author's code may raise anything for unexpected results
        return False


def _differ(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    one, other = tensors_in(values), tensors_in(others)
    return len(one) != len(other) or not all(map(same_bits, one, other))


def _cases(op: Op, problems: Sequence[Problem]) -> Iterator[tuple[Problem, str]]:
    def order(problem: Problem) -> tuple[bool, int]:
        size = _bytes(op, problem)
        return size > _HANDY_BYTES, size if size > _HANDY_BYTES else -size

    for kind in op.kinds:
        for problem in sorted(problems, key=order):
            yield problem, kind


def _examples(op: Op) -> list[Problem]:
    try:
        return [op.named(dims) for dims in op.examples]
    except RegistryError:
        # check_op reports their faults
        return []


def _drawn(op: Op, problem: Problem, kind: str, seed: int, device: torch.device) -> tuple[Any, ...]:
    return op.draw(problem, kind, torch.Generator(device).manual_seed(seed))
