"""The keys of a config.json: typed, by any of the names that models give them, and with errors that name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgumentError

_NESTED = ("text_config", "llm_config", "language_config")
"""Keys under which a model of several modalities keeps the config of its decoder."""


class Keys:
    """A decoder's config. Keys whose value is null count as missing."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        outer = config
        for nested in _NESTED:
            if isinstance(inner := config.get(nested), dict):
                config = {**inner, **{key: outer[key] for key in ("quantization_config",) if key in outer}}
        self._config = {key: value for key, value in config.items() if value is not None}
        self._name = name
        self.model_type = self.text("model_type", default="")

    def has(self, *names: str) -> bool:
        return any(name in self._config for name in names)

    def size(self, *names: str, default: int | None = None, most: int = 2**31 - 1) -> int:
        """The positive integer under the first of ``names`` that is there, at most ``most``.

        Raises InvalidArgumentError for another value, and without one unless there is a default.
        """
        name, value = self._found(names)
        if name is None:
            if default is None:
                raise self.missing(*names)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidArgumentError(
                f"{self._name}: {name} is {value!r:.60}", hint=f"expected an integer from 1 to {most}"
            )
        return value

    def number(self, *names: str, default: float) -> float:
        name, value = self._found(names)
        if name is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgumentError(f"{self._name}: {name} is {value!r:.60}", hint="expected a number")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        name, value = self._found(names)
        if name is None:
            return default
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{self._name}: {name} is {value!r:.60}", hint="expected true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        name, value = self._found(names)
        if name is None:
            if default is None:
                raise self.missing(*names)
            return default
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{self._name}: {name} is {value!r:.60}", hint="expected text")
        return value

    def several(self, name: str) -> list[Any]:
        """The list under ``name``, empty without one."""
        value = self._config.get(name, [])
        if not isinstance(value, list):
            raise InvalidArgumentError(f"{self._name}: {name} is {value!r:.60}", hint="expected a list")
        return value

    def part(self, name: str) -> Mapping[str, Any]:
        """The object under ``name``, empty without one."""
        value = self._config.get(name, {})
        return value if isinstance(value, dict) else {}

    def missing(self, *names: str) -> InvalidArgumentError:
        kind = f"of model_type {self.model_type!r}" if self.model_type else "without a model_type"
        return InvalidArgumentError(
            f"{self._name}: a config {kind} has no {' or '.join(names)}",
            hint="the shapes of its ops depend on it: add it to a copy of the file, or record a run with"
            " registry.record and tune --shapes",
        )

    def _found(self, names: tuple[str, ...]) -> tuple[str | None, Any]:
        return next(((name, self._config[name]) for name in names if name in self._config), (None, None))
