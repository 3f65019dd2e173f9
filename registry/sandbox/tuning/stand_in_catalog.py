"""The catalog of a run in sandboxes: trusted ops, and stand-ins for all implementations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...contract import Op
from ...discovery.catalog import Catalog
from ...discovery.registration import check_implementation_of
from ...errors import InvalidDefinitionError, PluginError
from ...implementation import Implementation
from .description import ToldImplementation
from .stand_ins import DescribedStandIn, InstalledStandIn


class StandInCatalog(Catalog):
    """``trusted`` with a stand-in for each of its implementations, and those that plugin files told of.

    Raises PluginError for what a file told that is no implementation, or has the name of another.
    """

    def __init__(self, trusted: Catalog, told: Sequence[ToldImplementation]) -> None:
        super().__init__(entry_points=())
        self.trusted = trusted
        self._told: dict[str, list[DescribedStandIn]] = {}
        for one in told:
            self._add(one)
        self._all = lru_cache(maxsize=None)(self._made)

    def _add(self, told: ToldImplementation) -> None:
        op, others = self.trusted.op(told.op), self._told.setdefault(told.op, [])
        known = {each.name: each for each in (*self.trusted.implementations(told.op), *others)}
        made = DescribedStandIn(told)
        try:
            check_implementation_of(op, made, known)
        except InvalidDefinitionError as fault:
            raise PluginError(f"plugin file {told.file}: {fault.message}", hint=fault.hint) from fault
        others.append(made)

    def _made(self, op: str) -> dict[str, Implementation]:
        installed = map(InstalledStandIn, self.trusted.implementations(op))
        return {one.name: one for one in (*installed, *self._told.get(op, ()))}

    def plugin_files(self) -> dict[str, str]:
        """The plugin file of each implementation that is not installed, by ``op/name``."""
        every = [one for found in self._told.values() for one in found]
        return {f"{one.op}/{one.name}": str(one.file) for one in every}

    def ops(self) -> dict[str, Op]:
        return self.trusted.ops()

    def op(self, name: str) -> Op:
        return self.trusted.op(name)

    def implementations(self, op: str) -> tuple[Implementation, ...]:
        return tuple(self._all(op).values())

    def implementation(self, op: str, name: str) -> Implementation:
        return self._all(op).get(name) or self.trusted.implementation(op, name)

    def added_by_calls(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        return self.trusted.added_by_calls()
