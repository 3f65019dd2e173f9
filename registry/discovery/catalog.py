"""The catalog: every op, its implementations, and the plugins that were found, refused or blocked."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

from ..author_code import at
from ..contract import Op
from ..device import installed_version
from ..errors import InvalidDefinitionError, PluginError, RegistryError, UnknownNameError, unknown_op
from ..forking import renewed_in_child
from ..implementation import Implementation
from ..paths import resolved
from .backward_check import check_backward_ops
from .hooks import DEFINES, PROJECT, defines, hook_of
from .inventory import Inventory
from .loading import GUARDED, LACKS, at_hook, attach, called, import_file, missing_package, told
from .plugin import DISTRIBUTION, Faults, Hook, Permissions, Plugin, PluginReport
from .process_settings import settings_kept
from .registration import check_implementation_of

_LOADING: ContextVar[Catalog | None] = ContextVar("_LOADING", default=None)


def loading_catalog() -> Catalog | None:
    """The catalog that is loading a plugin file now, to which ``registry.register`` in that file adds; else None."""
    return _LOADING.get()


class _Box:
    """The plugin of the ops in the box, which use the hook that every plugin uses."""

    KERNEL_REGISTRY_API = 1

    @defines
    def ops(self) -> Iterable[Op]:
        from ..contracts import BOX

        return BOX


class Catalog:
    """Ops and implementations, found once, on first use.

    ``entry_points`` default to the group ``kernel_registry``. ``environ`` holds the allow and block lists and the
    strict mode. A plugin's fault is one PluginWarning and a line in ``plugins()``; under
    ``KERNEL_REGISTRY_STRICT=1`` it is a PluginError. An op's hooks run when its implementations are first wanted.
    """

    def __init__(
        self, entry_points: Iterable[metadata.EntryPoint] | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.generation = 0
        """Grows with every change: data derived from the catalog at a smaller number are stale."""
        self.files: tuple[str, ...] = ()
        """Paths given to ``load_file``: a worker process loads these files, too."""
        self._entry_points = entry_points
        self._permissions = Permissions(environ)
        self._lock = renewed_in_child(self, "_lock", threading.RLock)
        self._loaded = False
        self._busy = renewed_in_child(self, "_busy", bool)
        self._adopting: Plugin | None = None
        self._faults = Faults(self._permissions)
        self._inventory = Inventory()

    def ops(self) -> dict[str, Op]:
        """Every defined op by name, the box's first."""
        self._load()
        return dict(self._inventory.ops)

    def op(self, name: str) -> Op:
        """The op of that name. Raises UnknownNameError with the nearest names."""
        self._load()
        try:
            return self._inventory.ops[name]
        except KeyError:
            raise unknown_op(name, self._inventory.ops) from None

    def implementations(self, op: str) -> tuple[Implementation, ...]:
        """An op's implementations in the order of registration. Raises UnknownNameError for an unknown op."""
        return tuple(self._implementations_of(op).values())

    def files_of(self, op: str) -> tuple[str, ...]:
        """Paths of the plugin files that define the op or implement it."""
        with self._lock:
            return tuple(
                plugin.name
                for plugin in self._inventory.plugins
                if plugin.is_file and (op in plugin.ops or any(op == other for other, _ in plugin.implementations))
            )

    def implementation(self, op: str, name: str) -> Implementation:
        """The implementation of that name. Raises UnknownNameError with the nearest names."""
        found = self._implementations_of(op)
        try:
            return found[name]
        except KeyError:
            raise UnknownNameError(f"implementation of {op}", name, found) from None

    def plugins(self) -> tuple[PluginReport, ...]:
        """Every plugin that was found, with its faults; runs the hooks of every op."""
        self._load()
        for op in list(self._inventory.ops):
            self.implementations(op)
        with self._lock:
            return tuple(plugin.report(self._inventory.inactive(plugin)) for plugin in self._inventory.plugins)

    def file_plugin(self, path: str | Path) -> PluginReport:
        """The plugin of a file that was loaded by ``load_file``. No other plugin's hooks run."""
        name = str(resolved(path))
        with self._lock:
            plugin = next(each for each in self._inventory.plugins if each.is_file and each.name == name)
            return plugin.report(self._inventory.inactive(plugin))

    def register(self, implementation: Implementation) -> None:
        """Add an implementation of a known op. Raises UnknownNameError or InvalidDefinitionError.

        An implementation may be added again when its class was defined again, as in a notebook.
        """
        if not isinstance(implementation, Implementation):
            given: object = implementation
            hint = f"did you mean register({given.__name__}())?" if isinstance(given, type) else ""
            raise InvalidDefinitionError(
                f"register({given!r:.80}): not an Implementation's instance",
                hint=hint or "expected an object of a class that derives from registry.Implementation",
            )
        op = self.op(str(getattr(implementation, "op", "")))
        with self._lock:
            self._implementations_of(op.name)
            self._inventory.add_implementation(self._caller(), op, implementation)
            self.generation += 1

    def define(self, op: Op) -> None:
        """Add an op. Raises InvalidDefinitionError when its name, or the vendor before ``::`` in it, is taken."""
        self._load()
        with self._lock:
            self._inventory.add_op(self._caller(), op)
            self.generation += 1

    def added_by_calls(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """The ops, and implementations as (op, name), that ``define`` and ``register`` added outside plugin files."""
        added = self._inventory.by_calls
        return tuple(added.ops), tuple(added.implementations)

    def load_file(self, path: str | Path) -> None:
        """Load a .py file as a plugin. A file that is loaded already is not loaded again.

        Raises PluginError when anything about the file is wrong; the catalog then holds nothing of it.
        """
        self._load()
        file = resolved(path)
        with self._lock:
            if str(file) in self.files:
                return
            plugin = Plugin.of_file(file)
            self._adopting, loading = plugin, _LOADING.set(self)
            try:
                with self._settings_kept(plugin):
                    self._adopt_file(plugin, file)
            except RegistryError as fault:
                self._inventory.withdraw(plugin)
                raise PluginError(f"plugin file {path}: {fault.message}", hint=fault.hint) from fault
            finally:
                self._adopting = None
                _LOADING.reset(loading)
            self.files = (*self.files, str(file))
            self.generation += 1
        self._faults.tell()

    # --- loading

    def _load(self) -> None:
        if self._loaded:
            return
        with self._lock:
            if self._loaded:
                return
            with self._running_hooks():
                self._inventory = Inventory()
                self._faults.forget()
                self._find_plugins()
                for plugin in self._inventory.plugins:
                    self._collect_ops(plugin)
                for plugin in self._inventory.plugins:
                    self._check_backward_ops(plugin)
                    self._report_misspelt(plugin)
                self._loaded = True
        self._faults.tell()

    @contextmanager
    def _running_hooks(self) -> Iterator[None]:
        """A context in which hooks run, with the lock held. Raises RegistryError inside of another such context."""
        if self._busy:
            raise RegistryError(
                "the catalog was used while a plugin's hook was running", hint="a hook only returns what it offers"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _find_plugins(self) -> None:
        version = installed_version(DISTRIBUTION)
        box = Plugin("registry.contracts", DISTRIBUTION, version, _Box.KERNEL_REGISTRY_API)
        attach(box, _Box, self._inventory.manager, api_optional=False)
        self._inventory.plugins.append(box)
        found = self._entry_points
        if found is None:
            found = metadata.entry_points(group=PROJECT)
        taken: dict[str, Plugin] = {}
        for plugin, entry_point in sorted(Plugin.each_of(found), key=lambda pair: pair[0].rank):
            self._inventory.plugins.append(plugin)
            if first := taken.get(plugin.name):
                self._faults.of(plugin, f"the name {plugin.name!r} is taken by {first}; only that one is in use")
                continue
            taken[plugin.name] = plugin
            plugin.blocked = self._permissions.forbid(plugin.name)
            if plugin.blocked:
                continue
            try:
                with self._settings_kept(plugin):
                    attach(plugin, entry_point.load, self._inventory.manager, api_optional=False)
            except GUARDED as fault:
                self._faults.of(plugin, told(fault), fault)
        for text in self._permissions.misnamed(taken):
            self._faults.add(text)

    @contextmanager
    def _settings_kept(self, plugin: Plugin) -> Iterator[None]:
        """A context in which a plugin's code runs; settings of the process that it changes are put back, and told.

        The box's own plugins change none: what another thread of the program sets meanwhile, at its first call, stays.
        """
        if plugin.distribution == DISTRIBUTION:
            yield
            return
        told: list[str] = []
        with settings_kept(told.append):
            yield
        for text in told:
            if text not in plugin.faults:  # a hook may change it for every op
                self._faults.of(plugin, text)

    def _collect_ops(self, plugin: Plugin) -> None:
        for hook in plugin.hooks.get(DEFINES, ()):
            for op in self._called(plugin, hook, "its ops"):
                try:
                    with at_hook(hook):
                        self._inventory.add_op(plugin, op)
                except InvalidDefinitionError as fault:
                    self._faults.of(plugin, told(fault), fault)

    def _check_backward_ops(self, plugin: Plugin) -> None:
        for name in list(plugin.ops):
            try:
                check_backward_ops([self._inventory.ops[name]], self._inventory.ops)
            except InvalidDefinitionError as fault:
                self._inventory.remove_op(plugin, name)
                self._faults.of(plugin, str(fault), fault)

    def _called(self, plugin: Plugin, hook: Hook, what: str) -> tuple[Any, ...]:
        try:
            with self._settings_kept(plugin):
                return called(hook, what)
        except InvalidDefinitionError as fault:
            lacking = missing_package(fault.__cause__)
            text = f"{LACKS} {lacking}, which is not installed" if lacking else told(fault)
            if text not in plugin.faults:  # a missing package is a fault of every op's hook: report it once
                self._faults.of(plugin, text, fault.__cause__)
            return ()

    def _report_misspelt(self, plugin: Plugin) -> None:
        for op in self._inventory.inactive(plugin):
            near = difflib.get_close_matches(op, self._inventory.ops, n=1, cutoff=0.85)
            if near:
                place = at(plugin.hooks[hook_of(op)][0])
                text = f"it implements {op!r}, which nobody defines; did you mean {near[0]!r}?{place}"
                self._faults.of(plugin, text)

    # --- implementations

    def _implementations_of(self, op: str) -> Mapping[str, Implementation]:
        if op in self._inventory.implementations:
            return self._inventory.implementations[op]
        contract = self.op(op)
        with self._lock:
            if op not in self._inventory.implementations:
                self._inventory.implementations[op] = self._collect(contract)
            found = self._inventory.implementations[op]
        self._faults.tell()
        return found

    def _collect(self, op: Op) -> dict[str, Implementation]:
        found: dict[str, Implementation] = {}
        owned: list[tuple[Plugin, tuple[str, str]]] = []
        with self._running_hooks():
            for plugin in self._inventory.plugins:
                for implementation in self._offered(plugin, op, found):
                    found[implementation.name] = implementation
                    owned.append((plugin, (op.name, implementation.name)))
        for plugin, entry in owned:
            plugin.implementations.append(entry)
        return found

    def _offered(self, plugin: Plugin, op: Op, found: Mapping[str, Implementation]) -> Iterable[Implementation]:
        owners = {other.name for other in self._inventory.plugins} - {plugin.name}
        for hook in plugin.hooks.get(op.hook, ()):
            for implementation in self._called(plugin, hook, f"its implementations of {op.name}"):
                try:
                    check_implementation_of(op, implementation, found, owners, hook)
                except InvalidDefinitionError as fault:
                    self._faults.of(plugin, told(fault), fault)
                else:
                    yield implementation

    # --- files, and additions by define and register

    def _caller(self) -> Plugin:
        """The plugin to which calls of ``define`` and ``register`` add: the file that is being loaded, if any."""
        inventory = self._inventory
        if self._adopting is None and inventory.by_calls not in inventory.plugins:
            inventory.plugins.append(inventory.by_calls)
        return self._adopting or inventory.by_calls

    def _adopt_file(self, plugin: Plugin, file: Path) -> None:
        before = self.generation
        attach(plugin, lambda: import_file(file), self._inventory.manager, api_optional=True)
        if not plugin.hooks and self.generation == before:
            raise PluginError(
                "it registers nothing",
                hint="mark a function that returns a list: with @registry.defines one of ops, with"
                ' @registry.implements("softmax") one of implementations',
            )
        inventory = self._inventory
        for hook in plugin.hooks.get(DEFINES, ()):
            for op in called(hook, "its ops"):
                with at_hook(hook):
                    inventory.add_op(plugin, op)
        check_backward_ops([inventory.ops[name] for name in plugin.ops], inventory.ops)
        for name in inventory.inactive(plugin):
            hook = plugin.hooks[hook_of(name)][0]
            unknown = unknown_op(name, inventory.ops)
            raise PluginError(unknown.message, hint=f"{unknown.hint}{at(hook)}") from unknown
        for op in [op for op in inventory.ops.values() if op.hook in plugin.hooks]:
            self._implementations_of(op.name)
            for hook in plugin.hooks[op.hook]:
                for implementation in called(hook, f"its implementations of {op.name}"):
                    check_implementation_of(op, implementation, inventory.implementations[op.name], hook=hook)
                    inventory.add_implementation(plugin, op, implementation)
        inventory.plugins.append(plugin)
