"""Runs as source text: a plan's function contains the launches themselves, without a call and tuples in between.

On a host where a kernel's launch costs 5 µs, each Python call, tuple or loop before it costs 0.1 to 0.3 µs. Sizes are
names in the text, so that a run for another size is the same compiled text with other values for these names.
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
from .launch_numbers import LaunchNumbers


@dataclass(frozen=True)
class Operands:
    """Expressions by which the text of a run reads the tensors and numbers of a call in the surrounding text.

    groups     an expression for each of ``outputs``, ``arguments`` and ``scratch``
    items      expressions for their items, if the surrounding text has them in variables
    after      the statement that ends the surrounding text when the run is done
    addresses  expressions for addresses that the surrounding text has in variables, by item
    stream     an expression for the current stream's handle, "" if the surrounding text has none
    on_device  True if the surrounding text makes the GPU the current one
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
        """An expression for a tensor's address. It checks that an argument's memory was not freed: no guard does."""
        item = self.at(group, place)
        freed = " or k_no_memory()" if group == "arguments" else ""
        return self.addresses.get(item) or f"{item}.data_ptr(){freed}"

    def call(self, function: str) -> str:
        """An expression that calls ``function`` with the groups, as a run."""
        return f"{function}({', '.join(self.groups.values())})"

    def leave_to(self, function: str) -> list[str]:
        """Lines that call another run, ``function``, and end."""
        return [self.call(function), self.after]


_WHOLE = {"outputs": "outputs", "arguments": "arguments", "scratch": "scratch"}


class WrittenForm(ABC):
    """Launches of loaded kernels without their extents and numbers: runs of one form have one text.

    names    the values of all names in the text that are no sizes
    sized    the names in the text that are sizes, in the order of a run's numbers
    numbers  a function that reads these numbers from launches; None for launches of another form

    Every name begins with ``k_``; the run itself is ``k_run``.
    """

    names: Mapping[str, Any]
    sized: Collection[str]
    numbers: LaunchNumbers

    def run(self, launches: tuple[Launch, ...], make_twin: Callable[[], Run] | None = None) -> WrittenRun:
        """The run of the launches that the form was made of."""
        numbers = self.numbers(launches)
        assert numbers is not None
        return WrittenRun(self, numbers, lambda: launches, make_twin)

    @abstractmethod
    def lines(self, operands: Operands) -> list[str]:
        """The text that enqueues a run's launches and returns nothing."""

    def careful(self, run: WrittenRun, *groups: Any) -> None:
        """Run in a slower way, for calls that the text leaves to ``k_run.careful``."""
        raise NotImplementedError

    def all_names(self) -> dict[str, Any]:
        """The values of all names in the text that are no sizes."""
        return {"k_no_memory": no_memory, **self.names}


def no_memory() -> NoReturn:
    """Raise NotReadyError for an argument that has elements but no memory."""
    raise NotReadyError("a tensor's memory was freed", hint="its storage was resized to nothing, and not back again")


class WrittenRun:
    """A run by the text of its form, compiled to a function when it is first called.

    ``make_launches(*given)`` returns the bound launches, which few runs need again and which would take a fifth of the
    memory of a new size. ``make_twin(*given)`` makes the run for tensors that are not aligned.
    """

    def __init__(
        self,
        form: WrittenForm,
        numbers: tuple[Any, ...],
        make_launches: Callable[..., tuple[Launch, ...]] | None = None,
        make_twin: Callable[..., Run] | None = None,
        given: tuple[Any, ...] = (),
    ) -> None:
        self.form = form
        self.numbers = numbers
        self._make_launches = make_launches
        self._make_twin = make_twin
        self._given = given

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The bound launches."""
        assert self._make_launches is not None
        return self._make_launches(*self._given)

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
        """The run for tensors that do not start at multiples of 16 bytes, as this run assumes."""
        assert self._make_twin is not None
        return self._make_twin(*self._given)

    def careful(self, *groups: Any) -> None:
        """Run in the form's slower way, ``WrittenForm.careful``."""
        self.form.careful(self, *groups)
