"""Runs as source text: a plan holds the launches in line, without the call and the tuples of a run in between.

On a host where a kernel's launch costs 5 µs, each Python call, tuple or loop before it costs 0.1 to 0.3 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from ..errors import NotReadyError


@dataclass(frozen=True)
class Operands:
    """How text reads the tensors and numbers of a call.

    groups     an expression for each of ``outputs``, ``arguments`` and ``scratch``
    items      expressions for their items, where the text around holds them in variables
    rows       expressions of the run's arguments behind the three groups
    after      what the text around does when the run is done
    addresses  of items whose address the text around holds, by item
    stream     the current stream's handle, if the text around holds it
    on_device  the text around has seen to it that the GPU is the current one
    """

    groups: Mapping[str, str]
    items: Mapping[str, tuple[str, ...]] | None = None
    rows: tuple[str, ...] = ()
    after: str = "return"
    addresses: Mapping[str, str] = field(default_factory=dict)
    stream: str = ""
    on_device: bool = False

    def at(self, group: str, place: int) -> str:
        """One item of a group."""
        return self.items[group][place] if self.items is not None else f"{self.groups[group]}[{place}]"

    def address(self, group: str, place: int) -> str:
        """The address of a tensor; no guard sees that the memory of one that is given was freed."""
        item = self.at(group, place)
        freed = " or k_no_memory()" if group == "arguments" else ""
        return self.addresses.get(item) or f"{item}.data_ptr(){freed}"

    def call(self, function: str) -> str:
        """``function`` called as a run is."""
        return f"{function}({', '.join([*self.groups.values(), *self.rows])})"

    def leave_to(self, function: str) -> list[str]:
        """Lines that let another run answer instead."""
        return [self.call(function), self.after]


_WHOLE = {"outputs": "outputs", "arguments": "arguments", "scratch": "scratch"}


@dataclass(frozen=True)
class Written:
    """``lines`` enqueue what the run enqueues and return nothing; they reach for ``names``, which begin with ``k_``."""

    lines: Callable[[Operands], list[str]]
    names: Mapping[str, Any]


def no_memory() -> NoReturn:
    """Raise NotReadyError: a tensor that is given has elements and no memory."""
    raise NotReadyError("a tensor's memory was freed", hint="its storage was resized to nothing, and not back again")


def run_of(written: Written, *, rows: bool = False) -> Any:
    """The run itself, which remembers its text."""
    operands = Operands(_WHOLE, rows=("rows",) if rows else ())
    signature = ", ".join([*_WHOLE, *operands.rows])
    run = function("run", signature, written.lines(operands), written.names)
    run.__dict__["written"] = written
    return run


def written_of(run: object) -> Written | None:
    """The text of a run that has one."""
    found = getattr(run, "written", None)
    return found if isinstance(found, Written) else None


def function(name: str, signature: str, body: list[str], names: Mapping[str, Any]) -> Callable[..., Any]:
    """A function of these lines, which reach for ``names``."""
    source = f"def {name}({signature}):\n" + "".join(f"    {line}\n" for line in body or ["pass"])
    scope = {"k_no_memory": no_memory, **names}
    exec(_compiled(name, source), scope)
    made: Callable[..., Any] = scope[name]
    return made


@lru_cache(maxsize=2048)
def _compiled(name: str, source: str) -> CodeType:
    """Runs of many configurations are the same text with other names behind it."""
    # a file name within this package, so that warnings point at who called it
    return compile(source, str(Path(__file__).with_name(f"<{name}>")), "exec")
