"""An implementation's tunable parameters: named domains, named constraints, enumerable."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from .author_code import at, where_called
from .errors import InvalidDefinitionError, MisnamedError, UnsupportedError
from .problem import Value, canonical_json, exact, exact_items

Config = Mapping[str, Any]
"""One point of a space: parameter name -> int, float, str or bool."""

Constraint = Callable[[Config], bool]


MANY = 4096
"""The most points before constraints of a space that keeps its configurations in memory."""

_SIMPLE = frozenset({int, str, bool})
_PLAIN = _SIMPLE | {float}


def _domain(name: str, given: Iterable[Value]) -> tuple[Value, ...]:
    """The values of a parameter, checked. Raises InvalidDefinitionError with the author's line."""
    if type(given) in {list, tuple} and given and _SIMPLE.issuperset(map(type, given)):
        values = tuple(given)
        if len(set(values)) == len(values):
            return values
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        fault, hint = f"is {given!r}", f"expected the values to choose from, e.g. {name}=[{given!r}]"
    elif not (values := tuple(given)):
        fault, hint = "is empty", "expected at least one value"
    elif odd := [value for value in values if type(value) not in _SIMPLE and not _is_finite(value)]:
        kind = type(odd[0])
        fault = f"holds {odd[0]!r:.80}, a {kind.__module__}.{kind.__qualname__}".replace(" a builtins.", " a ")
        hint = "a value is a plain int, finite float, str or bool: name others by a text, and translate it in launch()"
    elif len(set(map(exact, values))) != len(values):
        fault, hint = f"repeats a value: {list(values)}", "name each value once"
    else:
        return values
    raise InvalidDefinitionError(f"space: the domain of {name!r} {fault} ({where_called()})", hint=hint)


def _is_finite(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def config_key(config: Config) -> str:
    """Canonical JSON of a configuration: equal configurations have equal keys."""
    return canonical_json(dict(config))


class Space:
    """The finite product of named domains, without the configurations that break a named constraint. Immutable.

    >>> space = Space(BLOCK=[128, 256], num_warps=[1, 2, 4]).require("8 elements a thread", ...)
    """

    def __init__(self, **domains: Iterable[Value]) -> None:
        self.domains: Mapping[str, tuple[Value, ...]] = {name: _domain(name, given) for name, given in domains.items()}
        self.constraints: Mapping[str, Constraint] = {}
        self._sound: set[Hashable] = set()

    def require(self, name: str, constraint: Constraint) -> Space:
        """This space with one more constraint; ``name`` says in words which condition must hold."""
        if not isinstance(name, str) or not callable(constraint):
            raise InvalidDefinitionError(
                f"space: require({name!r:.60}, {constraint!r:.60})",
                hint='expected words and a function: require("tiles fit", lambda config: config["BLOCK"] <= 128)',
            )
        space = Space()
        space.domains, space.constraints = self.domains, {**self.constraints, name: constraint}
        return space

    @property
    def product(self) -> int:
        """The number of points before constraints."""
        return math.prod(len(values) for values in self.domains.values())

    @cached_property
    def configs(self) -> Sequence[Config]:
        """Every valid configuration, in the order of the domains; for large spaces each is made when it is accessed.

        Raises InvalidDefinitionError, as ``violations``.
        """
        if self.product > MANY:
            from .points import Points  # imports numpy, which a call does not need

            return Points(self)
        return tuple(config for config in self._points() if self._holds(config))

    @property
    def is_empty(self) -> bool:
        """True if the constraints exclude every configuration."""
        return not any(map(self._holds, self._points()))

    def first(self) -> Config:
        """The first valid configuration. Raises UnsupportedError when there is none, with the constraints' names."""
        found = next(filter(self._holds, self._points()), None)
        if found is None:
            raise UnsupportedError(self.why_empty())
        return found

    def why_empty(self) -> str:
        """A text for a space without valid configurations: how many each constraint excludes."""
        excluded = Counter(name for config in self._points() for name in self._broken(config))
        shown = ", ".join(f"{name!r} excludes {count}" for name, count in excluded.most_common())
        return f"its space has no valid configuration: of {self.product}, {shown}"

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and not self.violations(config)

    def violations(self, config: Config) -> list[str]:
        """Why ``config`` is no point of this space: every reason, empty when it is one.

        Raises InvalidDefinitionError when a constraint reads an unknown parameter, raises, or returns None.
        Valid points are remembered: a space that serves many sizes is asked again at each of them.
        """
        key = exact_items(config)
        if _PLAIN.issuperset(map(type, config.values())) and key in self._sound:
            return []
        reasons = [f"parameter {name!r} is missing" for name in self.domains if name not in config]
        reasons += [f"unknown parameter {name!r}" for name in config if name not in self.domains]
        reasons += [
            f"{name}={config[name]!r} is not one of {list(values)}"
            for name, values in self.domains.items()
            if name in config and exact(config[name]) not in map(exact, values)
        ]
        if not (reasons := reasons or self._broken(config)):
            self._sound.add(key)
        return reasons

    def holds(self, name: str, config: Config) -> bool:
        """Whether ``config`` satisfies the constraint ``name``. Raises InvalidDefinitionError, as ``violations``."""
        return bool(self._answer(name, self.constraints[name], config))

    def _broken(self, config: Config) -> list[str]:
        return [name for name in self.constraints if not self.holds(name, config)]

    def _holds(self, config: Config) -> bool:
        try:
            for holds in self.constraints.values():
                answer = holds(config)
                if not answer and answer is not None:
                    return False
                if answer is None:
                    break
            else:
                return True
        except Exception:
            pass  # a space is enumerated when a call is new: a fault is looked for only where there is one
        return all(self._answer(name, holds, config) for name, holds in self.constraints.items())

    def _answer(self, name: str, holds: Constraint, config: Config) -> bool:
        try:
            answer = holds(config)
        except KeyError as fault:
            if (unknown := fault.args[0]) in self.domains:
                raise
            raise MisnamedError(
                "parameter", str(unknown), self.domains, f"in the constraint {name!r}{at(holds)}"
            ) from None
        except Exception as fault:
            told = f"space: the constraint {name!r} raised {type(fault).__name__}: {fault}{at(holds)}"
            raise InvalidDefinitionError(told) from fault
        if answer is None:
            told = f"space: the constraint {name!r} returned None, expected True or False{at(holds)}"
            raise InvalidDefinitionError(told, hint="is a return missing?")
        return answer

    def _points(self) -> Iterator[Config]:
        names = list(self.domains)
        for values in itertools.product(*self.domains.values()):
            yield dict(zip(names, values, strict=True))

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(values)}' for name, values in self.domains.items())})"
