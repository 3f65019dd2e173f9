"""Runs as source text: a plan holds the launches in line, without the call and the tuples of a run in between.

On a host where a kernel's launch costs 5 µs, each Python call, tuple or loop before it costs 0.1 to 0.3 µs. Sizes are
names in the text, so that a run for another size is the compiled text with other values behind its names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from ..errors import NotReadyError
from ..generated_code import function


@dataclass(frozen=True)
class Operands:
    """How text reads the tensors and numbers of a call.

    groups     an expression for each of ``outputs``, ``arguments`` and ``scratch``
    items      expressions for their items, where the text around holds them in variables
    after      the statement that ends the surrounding text when the run is done
    addresses  of items whose address the text around holds, by item
    stream     the current stream's handle, if the text around holds it
    on_device  the text around has seen to it that the GPU is the current one
    """

    groups: Mapping[str, str]
    items: Mapping[str, tuple[str, ...]] | None = None
    after: str = "return"
    addresses: Mapping[str, str] = field(default_factory=dict)
    stream: str = ""
    on_device: bool = False

    def at(self, group: str, place: int) -> str:
        """An expression for one item of a group."""
        return self.items[group][place] if self.items is not None else f"{self.groups[group]}[{place}]"

    def address(self, group: str, place: int) -> str:
        """An expression for the address of a tensor; no guard sees that the memory of an argument was freed."""
        item = self.at(group, place)
        freed = " or k_no_memory()" if group == "arguments" else ""
        return self.addresses.get(item) or f"{item}.data_ptr(){freed}"

    def call(self, function: str) -> str:
        """An expression that calls ``function`` as a run is called."""
        return f"{function}({', '.join(self.groups.values())})"

    def leave_to(self, function: str) -> list[str]:
        """Lines that let another run answer instead."""
        return [self.call(function), self.after]


_WHOLE = {"outputs": "outputs", "arguments": "arguments", "scratch": "scratch"}


@dataclass(frozen=True)
class Written:
    """A run as text. ``lines`` enqueue what the run enqueues and return nothing; they reach for ``names``.

    Names begin with ``k_``. Runs of an equal ``form`` have equal lines and differ in what is behind the names.
    """

    form: Hashable
    lines: Callable[[Operands], list[str]]
    names: Mapping[str, Any]

    @property
    def all_names(self) -> dict[str, Any]:
        """All that the text reaches for."""
        return {"k_no_memory": no_memory, **self.names}


def no_memory() -> NoReturn:
    """Raise NotReadyError: a tensor that is given has elements and no memory."""
    raise NotReadyError("a tensor's memory was freed", hint="its storage was resized to nothing, and not back again")


class WrittenRun:
    """A run that remembers its text, and is made a function of its own when it is first called as one.

    ``origin`` is what a backend has bound it from, for runs of other sizes.
    """

    def __init__(self, written: Written, origin: Any = None) -> None:
        self.written = written
        self.origin = origin

    def __call__(self, outputs: Any, arguments: Any, scratch: Any) -> None:
        self.function(outputs, arguments, scratch)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The text as ``function(outputs, arguments, scratch)``."""
        return function("run", ", ".join(_WHOLE), self.written.lines(Operands(_WHOLE)), self.written.all_names)


def written_of(run: object) -> Written | None:
    """The text of a run that has one."""
    return run.written if isinstance(run, WrittenRun) else None
