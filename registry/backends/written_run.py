"""Runs as source text: a plan holds the launches in line, without the call and the tuples of a run in between.

On a host where a kernel's launch costs 5 µs, each Python call, tuple or loop before it costs 0.1 to 0.3 µs. Sizes are
names in the text, so that a run for another size is the compiled text with other values behind its names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from ..errors import NotReadyError
from ..generated_code import function
from ..implementation import Launch, Run
from .launch_numbers import Numbers


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


class WrittenForm(ABC):
    """Launches of loaded kernels without their extents and numbers: runs of one form have one text.

    names   all that the text reaches for and that is no size
    sized   what is: a run's numbers are behind these names, and the run itself behind ``k_run``
    numbers  takes the numbers from launches; None for launches of another form

    Every name begins with ``k_``.
    """

    names: Mapping[str, Any]
    sized: Collection[str]
    numbers: Numbers

    def run(self, launches: tuple[Launch, ...], make_twin: Callable[[], Run] | None = None) -> WrittenRun:
        """The run of the launches that the form was made of."""
        numbers = self.numbers(launches)
        assert numbers is not None
        return WrittenRun(self, numbers, launches, make_twin)

    @abstractmethod
    def lines(self, operands: Operands) -> list[str]:
        """The text that enqueues a run's launches and returns nothing."""

    def careful(self, run: WrittenRun, *groups: Any) -> None:
        """Run what the text leaves to a slower way, ``k_run.careful``."""
        raise NotImplementedError

    def all_names(self) -> dict[str, Any]:
        """All that the text reaches for, but for what is a size."""
        return {"k_no_memory": no_memory, **self.names}


def no_memory() -> NoReturn:
    """Raise NotReadyError: a tensor that is given has elements and no memory."""
    raise NotReadyError("a tensor's memory was freed", hint="its storage was resized to nothing, and not back again")


class WrittenRun:
    """A run that has a text, and is made a function of its own when it is first called as one.

    ``launches`` are what a backend has bound; ``make_twin`` makes what runs where tensors are not aligned.
    """

    def __init__(
        self,
        form: WrittenForm,
        numbers: tuple[Any, ...],
        launches: tuple[Launch, ...] = (),
        make_twin: Callable[[], Run] | None = None,
    ) -> None:
        self.form = form
        self.numbers = numbers
        self.launches = launches
        self._make_twin = make_twin

    def __call__(self, outputs: Any, arguments: Any, scratch: Any) -> None:
        self.function(outputs, arguments, scratch)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The text as ``function(outputs, arguments, scratch)``."""
        form = self.form
        names = {**form.all_names(), **dict(zip(form.sized, self.numbers, strict=True)), "k_run": self}
        return function("run", ", ".join(_WHOLE), form.lines(Operands(_WHOLE)), names)

    @cached_property
    def twin(self) -> Run:
        """The run for tensors that do not start at multiples of 16 bytes, where this one assumes that they do."""
        assert self._make_twin is not None
        return self._make_twin()

    def careful(self, *groups: Any) -> None:
        """Run in the form's slower way."""
        self.form.careful(self, *groups)
