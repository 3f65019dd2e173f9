"""Reports of checks: what was checked, what was skipped and why, what failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..author_code import where_raised, where_run_failed
from ..correctness.poisoned_layouts import LAYOUTS
from ..errors import ArgumentTypeError, CheckError, RegistryError
from ..folding import Place, folded, kind_of

_LINE = re.compile(r"\.py:\d")
"""A line of an author's file in a message."""


def refuse_unlike(check: str, name: str, given: object, kind: type) -> None:
    """Raise ArgumentTypeError unless an argument of a check, by the names of both, is of a public class of ours."""
    if not isinstance(given, kind):
        shown = f"the class {given.__name__}" if isinstance(given, type) else f"{given!r:.80}"
        raise ArgumentTypeError(f"{check}: {name} is {shown}", hint=f"expected a registry.{kind.__name__}")


@dataclass(frozen=True)
class Report:
    """The result of a check: a line for each checked subject, each reason to skip one, each failure and each warning.

    A warning is of what callers may do wrong, which fails no check.
    Reasons or failures that differ in numbers only are one line with an example, and with how many problems and
    configurations have them: ``(16 problems, 4 configs)``.
    """

    subject: str
    checked: tuple[str, ...]
    skipped: tuple[str, ...]
    failures: tuple[str, ...]
    warned: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {len(self.checked)} checked, {len(self.skipped)} skipped, {len(self.failures)} failed"
        ]
        lines += [f"  failed: {line}" for line in self.failures]
        lines += [f"  skipped: {line}" for line in self.skipped]
        lines += [f"  warning: {line}" for line in self.warned]
        return "\n".join(lines)


@dataclass
class Notes:
    """A report in the making; ``skipped``, ``failures`` and ``warned`` hold a place and a line each."""

    subject: str
    checked: list[str] = field(default_factory=list)
    skipped: list[tuple[Place, str]] = field(default_factory=list)
    failures: list[tuple[Place, str]] = field(default_factory=list)
    warned: list[tuple[Place, str]] = field(default_factory=list)

    def add(self, place: Place, faults: Iterable[str]) -> None:
        """Note that the subject at ``place`` was checked and has these faults."""
        self.checked.append(place.told)
        self.failures += [(place, fault) for fault in faults]

    def report(self) -> Report:
        """The report; raises CheckError when something failed, or when there was nothing to check."""
        if not self.checked:
            remedy = "" if self.skipped or self.failures else ": give the op examples, or the check problems=[{...}]"
            self.failures.append((Place(), f"nothing was checked{remedy}"))
        failures, skipped = folded(_of_layouts(self.failures)), folded(self.skipped)
        warned = tuple(folded(self.warned))
        report = Report(self.subject, tuple(self.checked), tuple(skipped), tuple(failures), warned)
        if not report.ok:
            raise CheckError(str(report))
        return report


def guarded(faults: Iterator[str], *authors: object) -> Iterator[str]:
    """``faults``, and an exception of the checked code of ``authors`` as one more fault, with its line."""
    try:
        yield from faults
    except RegistryError as fault:
        told = f"{fault.message}{fault.hint and f' ({fault.hint})'}"
        yield told if _LINE.search(told) else f"{told}{where_raised(fault, *authors)}"
    except Exception as fault:
        line = where_raised(fault, *authors) or "".join(where_run_failed(fault, one) for one in authors[:1])
        yield f"raised {type(fault).__name__}: {str(fault).strip() or 'no message'}{line}"


def _of_layouts(faults: Sequence[tuple[Place, str]]) -> Iterator[tuple[Place, str]]:
    """Faults of layouts: one that dense tensors have too is no fault of another layout."""
    everywhere = {kind_of(fault) for place, fault in faults if place.group in {"", LAYOUTS[0]}}
    for place, fault in faults:
        yield replace(place, group="") if kind_of(fault) in everywhere else place, fault
