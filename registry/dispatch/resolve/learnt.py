"""Learnt rules for defaults, used where no tuned problem is near, from all decided problems of an op on one hardware.

A rule is a small decision tree on the problem's dimensions. Its leaves rank the implementations whose defaults were
faster than the default of the implementation with the highest preference. For implementations whose defaults were
slower than their winning configurations, the rule holds those configurations. ``tuner.decide.learning`` fits rules; a
tuning run stores its rules, and ``registry/shipped/defaults.json`` holds those of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...arguments.specs import Value
from ...errors import StoreError
from ...generated_code import function
from ...space import Config

_DEEPEST = 8


@dataclass(frozen=True)
class Leaf:
    """Implementations with their geometric mean time over the fastest one's, best first, over ``problems`` problems.

    Only implementations that were faster than the one with the highest preference, which comes next.
    """

    ranking: tuple[tuple[str, float], ...]
    problems: int

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each implementation in the ranking."""
        return {name: place for place, (name, _) in enumerate(self.ranking)}


@dataclass(frozen=True)
class Split:
    """A branch: ``yes`` if the dimension is at most ``bound`` (or equals it, if a text or boolean), else ``no``."""

    dim: str
    bound: Value
    yes: Split | Leaf
    no: Split | Leaf

    def holds(self, dims: Mapping[str, Value]) -> bool:
        """True if a problem with these dimensions goes to ``yes``."""
        value, bound = dims.get(self.dim), self.bound
        if isinstance(bound, bool | str) or isinstance(value, bool | str) or value is None:
            return value == bound
        return value <= bound

    def shown(self, holds: bool) -> str:
        """The answer as text: ``rows <= 64``."""
        if isinstance(self.bound, bool | str):
            return f"{self.dim} {'is' if holds else 'is not'} {self.bound}"
        return f"{self.dim} {'<=' if holds else '>'} {self.bound:g}"


@dataclass(frozen=True)
class WinningConfig:
    """A configuration that won, and the dimensions of the problem where it did."""

    dims: Mapping[str, Value]
    config: Config

    def octaves(self, dims: Mapping[str, Value]) -> tuple[int, float]:
        """The distance of a problem: (texts and booleans that differ, sum of squares of the numbers' octaves)."""
        differ, squares = 0, 0.0
        for name, own in self.dims.items():
            other = dims.get(name)
            if isinstance(own, bool | str) or isinstance(other, bool | str) or other is None:
                differ += own != other
            elif own != other:
                squares += math.log2(max(own, 1) / max(other, 1)) ** 2
        return differ, squares


def nearest_config(known: Sequence[WinningConfig], dims: Mapping[str, Value]) -> WinningConfig:
    """The configuration that won nearest to a problem with these dimensions, the first of equals."""
    return min(known, key=lambda one: one.octaves(dims))


@dataclass(frozen=True)
class LearntDefault:
    """The rule of an op at one ``version``, fitted to ``problems`` problems.

    ``configs`` are by implementation; ``where`` is the hardware and the origin as text.
    """

    version: int
    problems: int
    tree: Split | Leaf
    configs: Mapping[str, tuple[WinningConfig, ...]] = field(default_factory=dict)
    where: str = ""

    def config(self, name: str, dims: Mapping[str, Value]) -> Config | None:
        """The configuration with which an implementation won nearest; None if its own default is as good."""
        known = self.configs.get(name)
        return nearest_config(known, dims).config if known else None

    @cached_property
    def leaf(self) -> Callable[[Mapping[str, Value]], Leaf]:
        """``leaf(dims)``: the leaf of a problem with these dimensions. Generated: each new size of a call needs it."""
        names: dict[str, Any] = {"type": type, "int": int}
        lines = _leaf_lines(self.tree, names)
        return function("leaf", "dims", ["get = dims.get", *lines], names)

    def rank(self, dims: Mapping[str, Value]) -> Mapping[str, int]:
        """The place of each implementation in the ranking for a problem with these dimensions."""
        return self.leaf(dims).places

    def reason(self, dims: Mapping[str, Value], name: str) -> str:
        """The reason, as text, to take an implementation of the ranking."""
        node, told = self.tree, list[str]()
        while isinstance(node, Split):
            told.append(node.shown(holds := node.holds(dims)))
            node = node.yes if holds else node.no
        ratio = dict(node.ranking)[name]
        among = f" where {' and '.join(told)}" if told else ""
        return f"{ratio:.2f} times the fastest one's time in {node.problems} problems{among}, {self.where}"

    def plain(self) -> dict[str, Any]:
        """The rule as JSON holds it."""
        configs = {
            name: [{"dims": dict(one.dims), "config": dict(one.config)} for one in known]
            for name, known in sorted(self.configs.items())
        }
        return {"version": self.version, "problems": self.problems, "tree": _plain(self.tree), "configs": configs}


def learnt_from(given: Any, where: str) -> LearntDefault:
    """The rule from the result of ``plain``. Raises StoreError for anything else."""
    try:
        configs = {
            str(name): tuple(WinningConfig(_mapping(one["dims"]), _mapping(one["config"])) for one in known)
            for name, known in given["configs"].items()
        }
        return LearntDefault(int(given["version"]), int(given["problems"]), _node(given["tree"], 0), configs, where)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as fault:
        raise StoreError(f"{where}: no rule for a default: {type(fault).__name__}: {fault}") from fault


def _leaf_lines(node: Split | Leaf, names: dict[str, Any]) -> list[str]:
    """Lines that return the leaf below ``node`` of the dimensions ``dims``; adds the values of their names."""
    own = f"n{len(names)}"
    names[own] = node
    if isinstance(node, Leaf):
        return [f"return {own}"]
    holds = f"{own}.holds(dims)"
    if not isinstance(node.bound, bool | str):
        # plain numbers are compared without a call
        names[f"{own}_bound"] = node.bound
        holds = f"value <= {own}_bound if type(value := get({node.dim!r})) is int else {holds}"
    yes, no = (_leaf_lines(each, names) for each in (node.yes, node.no))
    return [f"if ({holds}):", *(f"    {line}" for line in yes), *no]


def _mapping(given: Any) -> dict[str, Any]:
    if not all(isinstance(value, int | float | str) for value in given.values()):
        raise ValueError(f"{given!r:.80} holds other values than numbers, texts and booleans")
    return dict(given)


def _plain(node: Split | Leaf) -> dict[str, Any]:
    if isinstance(node, Leaf):
        return {"ranking": [[name, round(ratio, 4)] for name, ratio in node.ranking], "problems": node.problems}
    return {"dim": node.dim, "bound": node.bound, "yes": _plain(node.yes), "no": _plain(node.no)}


def _node(given: Any, depth: int) -> Split | Leaf:
    if depth > _DEEPEST:
        raise ValueError(f"the tree is deeper than {_DEEPEST}")
    if "ranking" in given:
        ranking = tuple((str(name), float(ratio)) for name, ratio in given["ranking"])
        return Leaf(ranking, int(given["problems"]))
    bound = given["bound"]
    if not isinstance(bound, int | float | str):
        raise ValueError(f"bound is {bound!r:.80}")
    return Split(str(given["dim"]), bound, _node(given["yes"], depth + 1), _node(given["no"], depth + 1))
