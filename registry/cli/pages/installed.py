"""Facts of a report that no database holds: the work of problems by their contracts, and the source of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuning_db import ProblemKey

    from ...contract import Op
    from ...implementation import Implementation
    from ...problem import Problem
    from ...report.sources import InstalledSource
    from ...report.work import Work


def counted_work(problems: Iterable[ProblemKey]) -> Mapping[str, Work]:
    """Key of a problem -> its work, of problems whose op is installed in their version."""
    from ...discovery.catalog import Catalog
    from ...report.work import Work
    from ...tuner.work import work_of

    ops = Catalog().ops()

    def known() -> Iterator[tuple[Op, Problem]]:
        for one in problems:
            op = ops.get(one.op)
            problem = _problem(op, one) if op is not None and op.version == one.op_version else None
            if op is not None and problem is not None:
                yield op, problem

    return {key: Work(*work) for key, work in work_of(known()).items() if work[0] > 0}


def _problem(op: Op, stored: ProblemKey) -> Problem | None:
    try:
        return op.problem_of(dict(stored.dims))
    except Exception:  # an op's check may raise anything for dimensions that it does not have
        return None


def installed_sources(ops: Iterable[str]) -> Mapping[tuple[str, str], InstalledSource]:
    """(op, name) -> the source of each implementation of these ops that is installed."""
    from ...discovery.catalog import Catalog

    catalog = Catalog()
    known = catalog.ops()
    return {
        (op, one.name): _source(one) for op in dict.fromkeys(ops) if op in known for one in catalog.implementations(op)
    }


def _source(implementation: Implementation) -> InstalledSource:
    from ...fingerprint import module_text
    from ...report.sources import InstalledSource

    texts: dict[str, str] = {}
    try:
        for source in implementation.sources():
            if isinstance(source, ModuleType):
                texts[source.__name__] = module_text(source)
            else:
                texts.setdefault(f"kernel text {len(texts) + 1}", source)
        return InstalledSource(implementation.fingerprint(), [entry for entry in texts.items() if entry[1].strip()])
    except Exception as fault:  # an author's sources() may raise anything
        return InstalledSource(fault=f"{type(fault).__name__}: {fault}")
