"""Reports of checks: what was checked, what was skipped and why, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..author_code import where_raised
from ..correctness.poisoned_layouts import LAYOUTS
from ..errors import CheckError, RegistryError, folded


@dataclass(frozen=True)
class Report:
    """The result of a check: a line for each checked subject, each reason to skip one, and each failure.

    A reason or failure that several subjects share is one line with their count, ``(x 12)``.
    """

    subject: str
    checked: tuple[str, ...]
    skipped: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {len(self.checked)} checked, {len(self.skipped)} skipped, {len(self.failures)} failed"
        ]
        lines += [f"  failed: {line}" for line in self.failures]
        lines += [f"  skipped: {line}" for line in self.skipped]
        return "\n".join(lines)


@dataclass
class Notes:
    """A report in the making; ``skipped`` and ``failures`` hold a subject and a line each."""

    subject: str
    checked: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, subject: str, faults: Iterable[str]) -> None:
        """Note that ``subject`` was checked and has these faults."""
        self.checked.append(subject)
        self.failures += [(subject, fault) for fault in faults]

    def report(self) -> Report:
        """The report; raises CheckError when something failed, or when there was nothing to check."""
        if not self.checked:
            self.failures.append(("", "nothing was checked"))
        failures, skipped = folded(self.failures, _layout_in), folded(self.skipped, _layout_in)
        report = Report(self.subject, tuple(self.checked), tuple(skipped), tuple(failures))
        if not report.ok:
            raise CheckError(str(report))
        return report


def guarded(faults: Iterator[str], *authors: object) -> Iterator[str]:
    """``faults``, and an exception of the checked code of ``authors`` as one more fault, with its line."""
    try:
        yield from faults
    except RegistryError as fault:
        yield f"{fault.message}{fault.hint and f' ({fault.hint})'}"
    except Exception as fault:
        line = where_raised(fault, *authors)
        yield f"raised {type(fault).__name__}: {str(fault).strip() or 'no message'}{line}"


def _layout_in(subject: str) -> str:
    """The layout in a subject's text: faults of different layouts are separate lines."""
    return next((layout for layout in LAYOUTS if f" {layout} " in subject), "")
