"""The inventory of a catalog: its plugins, ops and implementations, and pluggy's manager."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pluggy

from ..contract import Op
from ..implementation import Implementation
from .hooks import DEFINES, PROJECT, hook_of, specification
from .loading import file_module
from .plugin import Plugin
from .registration import check_implementation_of, check_new_op


class _Manager(pluggy.PluginManager):
    """pluggy's manager, which looks for specifications at no name that Python gives to every module.

    To look at those of each op's namespace took half of the time in which a catalog is loaded.
    """

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        """Options of a specification, or None for what is none."""
        return None if name.startswith("__") else super().parse_hookspec_opts(module_or_class, name)


class Inventory:
    """Plugins in the order in which they were found, ops by name, and implementations by op and name.

    ``implementations`` has an entry for an op once its hooks have run.
    """

    def __init__(self) -> None:
        self.manager = _Manager(PROJECT)
        self.manager.add_hookspecs(specification(DEFINES, "Ops that the plugin defines."))
        self.plugins: list[Plugin] = []
        self.ops: dict[str, Op] = {}
        self.implementations: dict[str, dict[str, Implementation]] = {}
        self.by_calls = Plugin("registry.register")
        """The plugin of everything that calls in this process add; one of ``plugins`` once there is something."""

    def add_op(self, plugin: Plugin, op: Op) -> None:
        """Add an op of a plugin. Raises InvalidDefinitionError."""
        check_new_op(op, self.ops, plugin, self.plugins)
        caller = getattr(self.manager.hook, op.hook, None)
        if caller is None or not caller.has_spec():  # the specification may be left from an op of a withdrawn file
            self.manager.add_hookspecs(specification(op.hook, f"Implementations of {op.schema}"))
        self.ops[op.name] = op
        plugin.ops.append(op.name)

    def remove_op(self, plugin: Plugin, name: str) -> None:
        plugin.ops.remove(name)
        del self.ops[name]
        self.implementations.pop(name, None)

    def add_implementation(self, plugin: Plugin, op: Op, implementation: Implementation) -> None:
        """Add an implementation of an op whose hooks have run. Raises InvalidDefinitionError.

        An implementation may be added again when its class was defined again, as in a notebook.
        """
        known = dict(self.implementations[op.name])
        entry = (op.name, str(getattr(implementation, "name", "")))
        if entry in plugin.implementations and known[entry[1]].definition == implementation.definition:
            del known[entry[1]]
            plugin.implementations.remove(entry)
        check_implementation_of(op, implementation, known, self._names_of_others(plugin))
        self.implementations[op.name] = {**known, implementation.name: implementation}
        plugin.implementations.append(entry)

    def _names_of_others(self, plugin: Plugin) -> set[str]:
        """Names of the installed plugins, without that whose name a file has, for a plugin under development."""
        return {other.name for other in self.plugins if other.is_installed and not other.blocked} - plugin.vendors

    def inactive(self, plugin: Plugin) -> tuple[str, ...]:
        """Names of the ops that a plugin implements, but no plugin defines."""
        defined = {op.hook for op in self.ops.values()}
        return tuple(op for op in plugin.implemented_ops if hook_of(op) not in defined)

    def withdraw(self, plugin: Plugin) -> None:
        """Remove a plugin file with its ops and implementations."""
        if self.manager.has_plugin(plugin.name):
            self.manager.unregister(name=plugin.name)
        sys.modules.pop(file_module(Path(plugin.name)), None)
        for op, name in plugin.implementations:
            known = self.implementations.get(op, {})
            self.implementations[op] = {other: one for other, one in known.items() if other != name}
        for op in list(plugin.ops):
            self.remove_op(plugin, op)
