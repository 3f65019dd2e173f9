"""``using``: an implementation forced for an op, within a with block of one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError
from ..forking import renewed_in_child
from ..space import Config, config_key

ForcedChoice = str | tuple[str, Mapping[str, Any]]
"""``"triton.row"``, or ``("triton.row", {"num_warps": 8})``."""


@dataclass(frozen=True)
class Forced:
    """The implementation that a with block forces; without a config its winning or default one is used."""

    implementation: str
    config: Config | None = None

    @classmethod
    def parse(cls, op: str, wanted: Any) -> Forced:
        """``wanted``, a name or a name with a config, as Forced. Raises InvalidArgumentError for anything else."""
        match wanted:
            case str():
                return cls(wanted)
            case (str() as name, Mapping() as config):
                return cls(name, dict(config))
        raise InvalidArgumentError(
            f"using({op}={wanted!r})",
            hint=f'expected {op}="plugin.name" or {op}=("plugin.name", {{"parameter": value}})',
        )

    @property
    def key(self) -> str:
        """Text that is equal for equal implementations and configs."""
        return f"{self.implementation} {'' if self.config is None else config_key(self.config)}"


class Forcing:
    """The open with blocks of ``using``. ``active`` counts those of all threads, so that the hot path reads one int."""

    def __init__(self) -> None:
        self._mine = mine = threading.local()
        # a forked child has only this thread, so only its blocks can end
        self.active = renewed_in_child(self, "active", lambda: int(getattr(mine, "blocks", 0)))
        self._lock = renewed_in_child(self, "_lock", threading.Lock)
        self._choices: ContextVar[Mapping[str, Forced]] = ContextVar("registry_using", default={})  # noqa: B039

    def of(self, op: str) -> Forced | None:
        """The implementation forced for an op in this thread (or asyncio task); None without one."""
        return self._choices.get().get(op) if self.active else None

    def captured(self) -> Mapping[str, Forced]:
        """All that is forced in this thread, for ``restored`` in another thread."""
        return self._choices.get() if self.active else {}

    @contextmanager
    def restored(self, choices: Mapping[str, Forced]) -> Iterator[None]:
        """A context in which exactly ``choices`` are forced, instead of those of the enclosing blocks."""
        if not choices and not self.active:
            yield
            return
        token = self._choices.set(choices)
        try:
            with self.closed():
                yield
        finally:
            self._choices.reset(token)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A context in which no call of any thread takes the hot path."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, blocks: int) -> None:
        with self._lock:
            self.active += blocks
            self._mine.blocks = getattr(self._mine, "blocks", 0) + blocks

    @contextmanager
    def using(self, choices: Mapping[str, Forced]) -> Iterator[None]:
        """A context in which ``choices`` are forced; for each op an inner block overrides an outer one."""
        with self.restored({**self._choices.get(), **choices}):
            yield
