"""Facts that the report and the dashboard show, such as the baseline of each op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import RegistryError
from .options import check_stored_op

if TYPE_CHECKING:
    from tuning_db import Store

    from ..contract import Op
    from ..device import Device
    from ..dispatch.plans.plan import Candidate
    from ..problem import Problem
    from ..report.facts import Facts, WorksOf


def baselines_of(ops: Iterable[str]) -> Mapping[str, str]:
    """The baseline of each op; torch's if an op is not installed. Plugins are loaded only for ops of plugins."""
    from ..report.facts import TORCH

    names = set(ops)
    if not any("::" in name for name in names):
        return dict.fromkeys(names, TORCH)
    from ..discovery.catalog import Catalog

    known = Catalog().ops()
    return {name: known[name].baseline if name in known else TORCH for name in names}


def prepared_by(op: Op, candidate: Candidate, problem: Problem) -> int | None:
    """Bytes that a candidate prepares for one set of weights; None if its implementation raises."""
    from ..arguments.inputs import arguments_of
    from ..dispatch.plans.prepared import bytes_to_prepare

    implementation, config = candidate.implementation, candidate.config
    try:
        if not (op.weights and implementation.prepared(problem, config)):
            return 0
        return bytes_to_prepare(op, (implementation, config), problem, arguments_of(op, problem))
    except Exception:  # whatever an author's code raises
        return None


def prepared_limit(device: Device) -> str:
    """The budget of prepared weights on a device as text: ``at most 5.9 GiB (...)``. Raises RegistryError."""
    from ..dispatch.plans import prepared, prepared_budget

    budget, given = prepared.BUDGET.of(device.torch), prepared_budget.given_bytes()
    whence = f"a quarter of {device}'s memory" if given is None else prepared_budget.VARIABLE
    return f"at most {budget / 2**30:.1f} GiB ({whence})"


def stored_facts(store: Store, ops: Sequence[str], counted: WorksOf | None = None) -> Facts:
    """The facts about ``ops``, or all ops, as of ``facts.read``. Raises RegistryError for an op without any trial."""
    from ..report.facts import read

    facts = read(store, ops, baselines_of, counted)
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
