"""Facts that the report and the dashboard show, and the baseline of each op among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import RegistryError
from .options import check_stored_op

if TYPE_CHECKING:
    from tuning_db import Store

    from ..report.facts import Facts


def baselines_of(ops: Iterable[str]) -> Mapping[str, str]:
    """The baseline of each op; torch's for one that is not installed. Plugins are loaded for ops of plugins only."""
    from ..contract import Op
    from ..discovery.catalog import Catalog

    names = set(ops)
    known = Catalog().ops() if any("::" in name for name in names) else {}
    return {name: known[name].baseline if name in known else Op.baseline for name in names}


def stored_facts(store: Store, ops: Sequence[str]) -> Facts:
    """The facts about ``ops``, or about all ops. Raises RegistryError for an op without any trial."""
    from ..report.facts import read

    facts = read(store, ops, baselines_of)
    there = {section.op for section in facts.sections}
    for op in ops:
        if op not in there:
            check_stored_op(op, store)  # a misspelt name is told as such
            others = sorted({section.op for section in read(store).sections})
            hint = f"it has {', '.join(others)}" if others else "it has none of any op: run tune first"
            raise RegistryError(f"no trials of {op} in {store.url}", hint=hint)
    if not there:
        raise RegistryError(f"no trials in {store.url}", hint="run tune first, or name another database with --db")
    return facts
