"""A plugin: its permission to load, its hooks, ops and implementations, its faults, and its report."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ..errors import PluginError, UnknownNameError
from .hooks import DEFINES, op_of

DISTRIBUTION = "kernel-registry"

ALLOW, BLOCK, STRICT = "KERNEL_REGISTRY_PLUGINS", "KERNEL_REGISTRY_BLOCK", "KERNEL_REGISTRY_STRICT"

Hook = Callable[[], Any]


class PluginWarning(RuntimeWarning):
    """The warning that a plugin, or a part of one, is not used because of a fault."""


@dataclass(frozen=True)
class Permissions:
    """The plugins that environment variables allow and block; an empty variable counts as unset."""

    environ: Mapping[str, str]

    @property
    def strict(self) -> bool:
        """True if a plugin's fault is an error."""
        return self.environ.get(STRICT, "") not in {"", "0"}

    def forbid(self, name: str) -> bool:
        """True if a plugin of that name must not be imported."""
        allowed = self._names(ALLOW)
        return name in self._names(BLOCK) or bool(allowed and name not in allowed)

    def misnamed(self, known: Collection[str]) -> list[str]:
        """A message for each allowed or blocked name that no installed plugin has."""
        return [
            f"{variable} names a plugin that is not installed: {UnknownNameError('plugin', name, known)}"
            for variable in (ALLOW, BLOCK)
            for name in self._names(variable)
            if name not in known
        ]

    def _names(self, variable: str) -> list[str]:
        return [name.strip() for name in self.environ.get(variable, "").split(",") if name.strip()]


@dataclass(frozen=True)
class PluginReport:
    """One plugin as ``registry plugins`` lists it.

    ``ops`` are those it defines, ``implementations`` are ``op/name``, ``inactive`` are ops that it implements, but no
    plugin defines, ``fault`` is empty without faults, ``blocked``: the environment forbids its import.
    """

    name: str
    distribution: str
    version: str
    api_version: int | None
    ops: tuple[str, ...]
    implementations: tuple[str, ...]
    inactive: tuple[str, ...]
    load_ms: float
    fault: str
    blocked: bool


@dataclass(eq=False)
class Plugin:
    """One plugin as the catalog holds it.

    vendors  the texts that may precede ``::`` in the names of its ops: for an entry point its name, and its import
             package's name after ``registry_``; for a file the file's name, likewise. Empty for the box and for calls
             of ``registry.define``
    hooks    its functions by the name of the hook they implement
    """

    name: str
    distribution: str = ""
    version: str = ""
    api_version: int | None = None
    load_ms: float = 0.0
    blocked: bool = False
    vendors: frozenset[str] = frozenset()
    is_file: bool = False
    hooks: Mapping[str, tuple[Hook, ...]] = field(default_factory=dict)
    ops: list[str] = field(default_factory=list)
    implementations: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def each_of(cls, entry_points: Iterable[EntryPoint]) -> list[tuple[Plugin, EntryPoint]]:
        """A plugin for each entry point, in order; nothing is imported."""
        # once per distribution: reading parses all its metadata, 0.3 ms, and it may have several entry points
        known: dict[int, tuple[str, str]] = {}
        offered: list[tuple[Plugin, EntryPoint]] = []
        for entry_point in entry_points:
            origin = entry_point.dist
            if origin is not None and id(origin) not in known:
                known[id(origin)] = origin.name, origin.version
            plugin = cls(entry_point.name, *known.get(id(origin), ("", "")))
            plugin.vendors = frozenset({_vendor(entry_point.name), _vendor(entry_point.module.partition(".")[0])})
            offered.append((plugin, entry_point))
        return offered

    @classmethod
    def of_file(cls, file: Path) -> Plugin:
        """The plugin for a file, named by its path."""
        return cls(str(file), vendors=frozenset({_vendor(file.stem)}), is_file=True)

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Sort key of the order of loading: the box first, so that no other entry point can replace its plugins."""
        return self.distribution != DISTRIBUTION, self.name, self.distribution

    @property
    def is_installed(self) -> bool:
        return bool(self.vendors) and not self.is_file

    @property
    def implemented_ops(self) -> tuple[str, ...]:
        """Names of the ops whose hooks the plugin implements, defined or not."""
        return tuple(op_of(hook) for hook in self.hooks if hook != DEFINES)

    def __str__(self) -> str:
        origin = " ".join(part for part in (self.distribution, self.version) if part)
        return f"plugin {self.name!r} ({origin or 'no distribution'})"

    def report(self, inactive: tuple[str, ...]) -> PluginReport:
        return PluginReport(
            name=self.name,
            distribution=self.distribution,
            version=self.version,
            api_version=self.api_version,
            ops=tuple(self.ops),
            implementations=tuple(f"{op}/{name}" for op, name in self.implementations),
            inactive=inactive,
            load_ms=self.load_ms,
            fault="; ".join(self.faults),
            blocked=self.blocked,
        )


def _vendor(name: str) -> str:
    """``registry_acme-kernels`` -> ``acme_kernels``."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower()).removeprefix("registry_")


class Faults:
    """Faults of plugins, each reported once: a PluginWarning by ``tell``, in strict mode a PluginError immediately."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._untold: list[str] = []

    def of(self, plugin: Plugin, text: str, cause: BaseException | None = None) -> None:
        """Add a fault of a plugin that was found."""
        self.add(f"{plugin}: {text}", cause)
        plugin.faults.append(text)

    def add(self, text: str, cause: BaseException | None = None) -> None:
        """Add a fault that belongs to no plugin that was found."""
        if self._permissions.strict:
            raise PluginError(text, hint=f"{STRICT} makes a plugin's fault an error") from cause
        self._untold.append(text)

    def forget(self) -> None:
        self._untold.clear()

    def tell(self) -> None:
        """Warn of each fault. Call it while the catalog is consistent: under ``-W error`` a warning raises."""
        while self._untold:
            warnings.warn(self._untold.pop(0), PluginWarning, stacklevel=5)
