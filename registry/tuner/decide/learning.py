"""Fits the rule for an op's default to the winners of one hardware, see ``dispatch.resolve.learnt``."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuning_db import Decision

from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...discovery.catalog import Catalog
from ...dispatch.resolve.learnt import Leaf, LearntDefault, Split, WinningConfig
from ...implementation import Implementation
from ...problem import Value
from ..storing import RunStore

DEEPEST = 3
FEWEST = 3
"""Problems in a leaf, at least."""

WORTH = math.log(1.02)
"""A question is asked if it makes the choices faster by this factor (a logarithm), in the mean over its problems."""

MOST_CONFIGS = 64
"""The most configurations of one implementation in a rule."""

_FOLDS = 5

_MOST_BOUNDS = 24
"""The most bounds of a dimension that are tried for a question."""

DECLARED = ""
"""The name that stands for the implementation that is declared best."""

_MOST = math.log(16.0)
"""The largest logarithm of a time over the fastest that counts: the worst of a few must not decide."""

Losses = Mapping[str, float]


@dataclass(frozen=True)
class DecidedLosses:
    """A decided problem: its dimensions, and by implementation the logarithm of its default's time over the fastest.

    ``DECLARED`` stands for the implementation that is declared best for the problem.
    """

    dims: Mapping[str, Value]
    losses: Losses


def learnt_by(store: RunStore, ops: Iterable[Op], catalog: Catalog, device: Device) -> dict[str, Any]:
    """The rules for defaults by op, as JSON: new ones for ``ops``, those learnt before for other ops."""
    rules = store.learnt()
    for op in ops:
        rule = fit(op, store.winners_of(op), catalog.implementations(op.name), device)
        if rule is not None:
            rules[op.name] = rule.plain()
    return rules


def fit(
    op: Op, decisions: Sequence[Decision], implementations: Sequence[Implementation], device: Device, where: str = ""
) -> LearntDefault | None:
    """The rule for an op, fitted to its winners on the hardware of ``device``; None where there are too few.

    Only installed implementations that transfer are ranked: code that is made for one size is no default.
    """
    current = [one for one in decisions if one.problem.op == op.name and one.problem.op_version == op.version]
    samples = samples_of(op, current, implementations, device)
    if len(samples) < 2 * FEWEST:
        return None
    learnt, declared = held_out(op, samples)
    tree = _grown(op, samples, DEEPEST) if learnt < declared else Leaf((), len(samples))
    configs = {one.name: known for one in implementations if (known := _known(op, current, one, device))}
    return LearntDefault(op.version, len(samples), tree, configs, where)


def held_out(op: Op, samples: Sequence[DecidedLosses]) -> tuple[float, float]:
    """Mean losses of the rule's choices and of the declared choices, on problems that the rule was not fitted to."""
    learnt, declared = [], []
    for fold in range(_FOLDS):
        rest = [one for place, one in enumerate(samples) if place % _FOLDS != fold]
        tree = _grown(op, rest, DEEPEST) if rest else Leaf((), 0)
        for one in samples[fold::_FOLDS]:
            rank = LearntDefault(op.version, len(rest), tree).rank(one.dims)
            default = one.losses.get(DECLARED)
            chosen = next((one.losses[name] for name in rank if name in one.losses), default)
            if chosen is not None and default is not None:
                learnt.append(chosen)
                declared.append(default)
    return (statistics.fmean(learnt), statistics.fmean(declared)) if learnt else (0.0, 0.0)


def samples_of(
    op: Op, decisions: Sequence[Decision], implementations: Sequence[Implementation], device: Device
) -> list[DecidedLosses]:
    """For each decision the losses of implementations' defaults.

    The finals time the best configuration of each implementation, and only the default of the one that is declared
    best. Where a default was timed, its own time counts. Elsewhere the time of the best configuration counts,
    multiplied by the median ratio of default to best: of that implementation if known, else of all.
    """
    named = {one.name: one for one in implementations if one.transfers}
    declared = [_declared(op, one, implementations, device) for one in decisions]
    behind: dict[str, list[float]] = {}
    for one, name in zip(decisions, declared, strict=True):
        best = one.time_over(name)
        if one.default_ratio is not None and best:
            behind.setdefault(name, []).append(max(0.0, math.log(one.default_ratio.value / best)))
    pooled = statistics.median([value for values in behind.values() for value in values] or [0.0])
    found = []
    for one, default in zip(decisions, declared, strict=True):
        losses: dict[str, float] = {}
        for name in named:
            ratio = one.time_over(name)
            if name == default and one.default_ratio is not None:
                losses[name] = _bounded(math.log(one.default_ratio.value))
            elif ratio is not None:
                losses[name] = _bounded(math.log(ratio)) + statistics.median(behind.get(name) or [pooled])
        if default in losses:
            losses[DECLARED] = losses[default]
        if losses:
            found.append(DecidedLosses(dict(one.problem.dims), losses))
    return found


def ranked(samples: Sequence[DecidedLosses]) -> list[tuple[str, float]]:
    """(implementation, mean loss), best first; an implementation that was not timed has its problem's worst loss."""
    names = dict.fromkeys(name for sample in samples for name in sample.losses)
    means = {
        name: statistics.fmean(sample.losses.get(name, max(sample.losses.values())) for sample in samples)
        for name in names
    }
    timed = {name: sum(name in sample.losses for sample in samples) for name in names}
    # of equals first the one that is declared best, then the one that was timed on most problems
    return sorted(means.items(), key=lambda pair: (pair[1], pair[0] != DECLARED, -timed[pair[0]]))


def _declared(op: Op, decision: Decision, implementations: Sequence[Implementation], device: Device) -> str:
    try:
        problem = op.problem_of(decision.problem.dims)
        able = [
            (answers.declared_preference(one, problem, device), -place, one.name)
            for place, one in enumerate(implementations)
            if not list(answers.refusals(one, problem, device))
        ]
    except Exception as fault:  # whatever a stranger's code raises says nothing about the others
        del fault
        return ""
    return max(able)[2] if able else ""


def _grown(op: Op, samples: Sequence[DecidedLosses], depth: int) -> Split | Leaf:
    ranking = ranked(samples)
    ahead = itertools.takewhile(lambda pair: pair[0] != DECLARED, ranking)
    leaf = Leaf(tuple((name, math.exp(loss)) for name, loss in ahead), len(samples))
    best: tuple[float, Split, list[DecidedLosses], list[DecidedLosses]] | None = None
    whole = ranking[0][1] * len(samples)
    for split in _questions(op, samples) if depth else ():
        yes = [one for one in samples if split.holds(one.dims)]
        no = [one for one in samples if not split.holds(one.dims)]
        if min(len(yes), len(no)) < FEWEST:
            continue
        gain = whole - sum(ranked(side)[0][1] * len(side) for side in (yes, no))
        if gain > WORTH * len(samples) and (best is None or gain > best[0] + 1e-9):
            best = gain, split, yes, no
    if best is None:
        return leaf
    _, split, yes, no = best
    return Split(split.dim, split.bound, _grown(op, yes, depth - 1), _grown(op, no, depth - 1))


def _known(
    op: Op, decisions: Sequence[Decision], implementation: Implementation, device: Device
) -> tuple[WinningConfig, ...]:
    """The configurations with which an implementation won, if they beat its own defaults; else none.

    On each problem that it won, the default and the configuration that won nearest at other static dimensions are
    compared with the winner and the candidates as fast as it. (At equal static dimensions the nearest winner answers
    anyway.)
    """
    won = [one for one in decisions if one.candidate.implementation == implementation.name and one.candidate.config]
    own = others = 0
    for one in won if implementation.transfers else ():
        dims = one.problem.dims
        far = [each for each in won if any(each.problem.dims.get(name) != dims.get(name) for name in op.static)]
        if not far:
            continue
        try:
            default = answers.default_config(implementation, op.problem_of(dims), device)
        except Exception:
            continue
        nearest = min(far, key=lambda each: WinningConfig(each.problem.dims, {}).octaves(dims))
        own += _as_fast(one, default)
        others += _as_fast(one, nearest.candidate.config)
    return _condensed(won) if others > own else ()


def _as_fast(decision: Decision, config: Mapping[str, Value]) -> bool:
    """Whether a configuration of the winner's implementation is the winner, or could not be told from it."""
    candidate = decision.candidate
    tied = [set(told.split()[1:]) for told in decision.ties if told.split()[0] == candidate.implementation]
    return dict(config) == dict(candidate.config) or {f"{name}={value}" for name, value in config.items()} in tied


def _condensed(won: Sequence[Decision]) -> tuple[WinningConfig, ...]:
    """The winners' configurations, without any that its neighbours among them already suggest."""
    kept: list[WinningConfig] = []
    for one in won:
        dims, config = dict(one.problem.dims), dict(one.candidate.config)
        if not kept or min(kept, key=lambda each: each.octaves(dims)).config != config:
            kept.append(WinningConfig(dims, config))
    return tuple(kept[:MOST_CONFIGS])


def _questions(op: Op, samples: Sequence[DecidedLosses]) -> Iterator[Split]:
    """Questions that divide the samples; the bound of a size is the mean of two logarithms."""
    none = Leaf((), 0)
    for dim in sorted(op.dynamic | op.static):
        values = {one.dims[dim] for one in samples if dim in one.dims}
        texts = sorted((value for value in values if isinstance(value, bool | str)), key=str)
        numbers = sorted(value for value in values if not isinstance(value, bool | str))
        for text in texts if len(texts) > 1 else ():
            yield Split(dim, text, none, none)
        pairs = list(itertools.pairwise(numbers))
        for low, high in pairs[:: -(-len(pairs) // _MOST_BOUNDS) or 1]:
            yield Split(dim, math.sqrt(low * high) if low > 0 else (low + high) / 2, none, none)


def _bounded(loss: float) -> float:
    return min(max(loss, 0.0), _MOST)
