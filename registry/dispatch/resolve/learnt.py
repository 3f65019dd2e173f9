"""What runs where nothing tuned is near, as learnt from all problems of an op that were decided on one hardware.

A rule is a small tree. It asks for dimensions of the problem; its leaves rank the implementations whose defaults were
faster than that of the implementation which is declared best. For implementations whose own defaults were worse than
the configurations with which they won elsewhere it holds these. ``tuner.decide.learning`` fits it; a tuning run stores
it with its record, and ``registry/shipped/defaults.json`` holds those that come with the package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...arguments.specs import Value
from ...errors import StoreError
from ...space import Config

_DEEPEST = 8


@dataclass(frozen=True)
class Leaf:
    """Implementations with their mean time over the fastest one's (geometric), best first, in so many ``problems``.

    Those alone that were faster than what is declared best; that follows.
    """

    ranking: tuple[tuple[str, float], ...]
    problems: int

    @cached_property
    def places(self) -> Mapping[str, int]:
        """By implementation its place."""
        return {name: place for place, (name, _) in enumerate(self.ranking)}


@dataclass(frozen=True)
class Split:
    """``yes`` where the dimension is at most ``bound`` (a number), or equal to it (a text or boolean); else ``no``."""

    dim: str
    bound: Value
    yes: Split | Leaf
    no: Split | Leaf

    def holds(self, dims: Mapping[str, Value]) -> bool:
        """Whether the problem with these dimensions goes to ``yes``."""
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
        """(texts and booleans that differ, squared distance of the numbers' base-2 logarithms)."""
        differ, squares = 0, 0.0
        for name, own in self.dims.items():
            other = dims.get(name)
            if isinstance(own, bool | str) or isinstance(other, bool | str) or other is None:
                differ += own != other
            elif own != other:
                squares += math.log2(max(own, 1) / max(other, 1)) ** 2
        return differ, squares


def nearest_config(known: Sequence[WinningConfig], dims: Mapping[str, Value]) -> WinningConfig:
    """The one that won nearest to a problem with these dimensions, the first of several."""
    return min(known, key=lambda one: one.octaves(dims))


@dataclass(frozen=True)
class LearntDefault:
    """The rule of an op at one ``version``, fitted to so many ``problems``.

    ``configs`` are by implementation; ``where`` tells the hardware and the origin.
    """

    version: int
    problems: int
    tree: Split | Leaf
    configs: Mapping[str, tuple[WinningConfig, ...]] = field(default_factory=dict)
    where: str = ""

    def config(self, name: str, dims: Mapping[str, Value]) -> Config | None:
        """The configuration with which an implementation won nearest; None where its own default is as good."""
        known = self.configs.get(name)
        return nearest_config(known, dims).config if known else None

    def leaf(self, dims: Mapping[str, Value]) -> Leaf:
        """The leaf of a problem with these dimensions."""
        node = self.tree
        while isinstance(node, Split):
            value, bound = dims.get(node.dim), node.bound
            # without a call where both are plain numbers: each new size of a call comes here
            plain = type(value) is int and type(bound) is not str and type(bound) is not bool
            node = node.yes if (value <= bound if plain else node.holds(dims)) else node.no  # type: ignore[operator]
        return node

    def rank(self, dims: Mapping[str, Value]) -> Mapping[str, int]:
        """By implementation its place for a problem with these dimensions."""
        return self.leaf(dims).places

    def reason(self, dims: Mapping[str, Value], name: str) -> str:
        """Why an implementation of the ranking is taken, for people."""
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
    """The rule that ``plain`` has written. Raises StoreError for anything else."""
    try:
        configs = {
            str(name): tuple(WinningConfig(_mapping(one["dims"]), _mapping(one["config"])) for one in known)
            for name, known in given["configs"].items()
        }
        return LearntDefault(int(given["version"]), int(given["problems"]), _node(given["tree"], 0), configs, where)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as fault:
        raise StoreError(f"{where}: no rule for a default: {type(fault).__name__}: {fault}") from fault


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
