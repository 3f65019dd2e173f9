"""An implementation's tunable parameters: named domains, named constraints, enumerable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from .errors import InvalidDefinitionError
from .problem import Value, canonical_json

Config = Mapping[str, Any]
"""One point of a space: parameter name -> int, float, str or bool."""

Constraint = Callable[[Config], bool]


def config_key(config: Config) -> str:
    """Canonical JSON of a configuration: equal configurations have equal keys."""
    return canonical_json(dict(config))


class Space:
    """The finite product of named domains, less what breaks a named constraint. Immutable.

    >>> space = Space(BLOCK=[128, 256], num_warps=[1, 2, 4]).require("8 elements a thread", ...)
    """

    def __init__(self, **domains: Iterable[Value]) -> None:
        self.domains: Mapping[str, tuple[Value, ...]] = {name: tuple(values) for name, values in domains.items()}
        self.constraints: Mapping[str, Constraint] = {}
        for name, values in self.domains.items():
            if not values:
                raise InvalidDefinitionError(f"space: the domain of {name!r} is empty")
            if len({canonical_json(value) for value in values}) != len(values):
                raise InvalidDefinitionError(f"space: the domain of {name!r} repeats a value: {list(values)}")

    def require(self, name: str, constraint: Constraint) -> Space:
        """This space with one more constraint; ``name`` says for a person what must hold."""
        space = Space()
        space.domains, space.constraints = self.domains, {**self.constraints, name: constraint}
        return space

    @property
    def product(self) -> int:
        """Points before constraints."""
        return math.prod(len(values) for values in self.domains.values())

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """Every valid configuration, in the order of the domains."""
        constraints = self.constraints.values()
        return tuple(config for config in self._points() if all(holds(config) for holds in constraints))

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and not self.violations(config)

    def violations(self, config: Config) -> list[str]:
        """Why ``config`` is no point of this space: every reason, empty when it is one."""
        reasons = [f"parameter {name!r} is missing" for name in self.domains if name not in config]
        reasons += [f"unknown parameter {name!r}" for name in config if name not in self.domains]
        reasons += [
            f"{name}={config[name]!r} is not one of {list(values)}"
            for name, values in self.domains.items()
            if name in config and canonical_json(config[name]) not in self._domain_keys[name]
        ]
        return reasons or self._broken(config)

    def _broken(self, config: Config) -> list[str]:
        return [name for name, holds in self.constraints.items() if not holds(config)]

    @cached_property
    def _domain_keys(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(map(canonical_json, values)) for name, values in self.domains.items()}

    def distance(self, one: Config, other: Config) -> int:
        """Sum over the parameters of how many places apart the two values stand in their domain (L1)."""
        return sum(abs(self._place(name, one) - self._place(name, other)) for name in self.domains)

    def neighbours(self, config: Config, radius: int) -> list[Config]:
        """The valid configurations at exactly L1 distance ``radius``."""
        return [other for other in self.configs if self.distance(config, other) == radius]

    def _place(self, name: str, config: Config) -> int:
        return self.domains[name].index(config[name])

    def _points(self) -> Iterator[Config]:
        names = list(self.domains)
        for values in itertools.product(*self.domains.values()):
            yield dict(zip(names, values, strict=True))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(values)}' for name, values in self.domains.items())})"
