"""The inventory of a catalog: the plugins, ops and implementations that were taken in, and pluggy's manager."""

from __future__ import annotations

import sys
from pathlib import Path

import pluggy

from ..contract import Op
from ..implementation import Implementation
from .hooks import DEFINES, PROJECT, hook_of, specification
from .loading import file_module
from .plugin import Plugin
from .registration import check_implementation_of, check_new_op


class Inventory:
    """Plugins in the order in which they were found, ops by name, and implementations by op and name.

    ``implementations`` has an entry for an op once its hooks have run.
    """

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(specification(DEFINES, "Ops that the plugin defines."))
        self.plugins: list[Plugin] = []
        self.ops: dict[str, Op] = {}
        self.implementations: dict[str, dict[str, Implementation]] = {}
        self.by_calls = Plugin("registry.register")
        """The plugin of all that is added by calls in this process; one of ``plugins`` once something was added."""

    def add_op(self, plugin: Plugin, op: Op) -> None:
        """Take in an op of a plugin. Raises InvalidDefinitionError."""
        check_new_op(op, self.ops, plugin, self.plugins)
        caller = getattr(self.manager.hook, op.hook, None)
        if caller is None or not caller.has_spec():  # an op that a file took away with it leaves its specification
            self.manager.add_hookspecs(specification(op.hook, f"Implementations of {op.schema}"))
        self.ops[op.name] = op
        plugin.ops.append(op.name)

    def remove_op(self, plugin: Plugin, name: str) -> None:
        plugin.ops.remove(name)
        del self.ops[name]
        self.implementations.pop(name, None)

    def add_implementation(self, plugin: Plugin, op: Op, implementation: Implementation) -> None:
        """Take in an implementation of an op whose hooks have run. Raises InvalidDefinitionError.

        One that was added this way may be added again when its class was merely defined anew, as in a notebook.
        """
        known = dict(self.implementations[op.name])
        entry = (op.name, str(getattr(implementation, "name", "")))
        if entry in plugin.implementations and known[entry[1]].definition == implementation.definition:
            del known[entry[1]]
            plugin.implementations.remove(entry)
        check_implementation_of(op, implementation, known)
        self.implementations[op.name] = {**known, implementation.name: implementation}
        plugin.implementations.append(entry)

    def inactive(self, plugin: Plugin) -> tuple[str, ...]:
        """Names of the ops that a plugin implements and nobody defines."""
        defined = {op.hook for op in self.ops.values()}
        return tuple(op for op in plugin.implemented_ops if hook_of(op) not in defined)

    def withdraw(self, plugin: Plugin) -> None:
        """Take a plugin file and all that it brought out again."""
        if self.manager.has_plugin(plugin.name):
            self.manager.unregister(name=plugin.name)
        sys.modules.pop(file_module(Path(plugin.name)), None)
        for op, name in plugin.implementations:
            known = self.implementations.get(op, {})
            self.implementations[op] = {other: one for other, one in known.items() if other != name}
        for op in list(plugin.ops):
            self.remove_op(plugin, op)
