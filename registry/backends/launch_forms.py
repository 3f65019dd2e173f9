"""Launches by what their compiled code depends on: another size of a bound launch finds its kernel without hashing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from ..artifact import Signature
from ..implementation import Launch
from ..problem import exact, exact_items
from .written_run import WrittenRun

MOST_FORMS = 8192
"""Of one backend. A form is some KiB; what is dropped is bound anew from the kernels, which stay loaded."""

_Form = TypeVar("_Form")


def _type_alone(_place: int, value: Any) -> str:
    return type(value).__name__


def launch_key(launch: Launch, number: Callable[[int, Any], Hashable] = _type_alone) -> Hashable:
    """All of a launch that its compiled code may depend on: no extent of the grid but whether one of them is 0.

    ``number(place, value)`` tells what code depends on of argument ``place``, which is a number: its type if not given.
    """
    return (
        launch.kernel,
        tuple([arg if type(arg) is str else number(place, arg) for place, arg in enumerate(launch.args)]),
        exact_items(launch.constants),
        exact_items(launch.options),
        tuple(launch.cluster),
        launch.shared_bytes,
        len(launch.grid),
        0 in launch.grid,
    )


def form_key(keys: Iterable[Hashable], signature: Signature, device: int, *others: Hashable) -> Hashable:
    """All that the compiled text of a run depends on; ``others`` is what a backend adds."""
    return (*keys, signature.form, device, *others)


class Origin(NamedTuple):
    """What a run was bound from."""

    launches: tuple[Launch, ...]
    signature: Signature
    device: int


SameNumber = Callable[[Launch, int, Any, Any], bool]
"""``same(launch, place, value, other)``: whether code depends on nothing in which two numbers of one type differ."""


def form_of_like(like: object, origin: Origin, same: SameNumber | None = None) -> Any:
    """The form of the run ``like``, where it was bound from what differs from ``origin`` in extents and numbers alone.

    None where it was not, or where that is not told at a glance: ``form_key`` has the answer then.
    """
    was = like.origin if isinstance(like, WrittenRun) else None
    if was is None or was.device != origin.device or len(was.launches) != len(origin.launches):
        return None
    for launch, known in zip(origin.launches, was.launches, strict=True):
        if not _alike(launch, known, same):
            return None
    return like.written.form if origin.signature.has_form_of(was.signature) else None  # type: ignore[attr-defined]


def _alike(launch: Launch, was: Launch, same: SameNumber | None) -> bool:
    """Whether ``launch_key`` of both is equal, as far as that is told at a glance."""
    return (
        launch.kernel is was.kernel
        and len(launch.grid) == len(was.grid)
        and (0 in launch.grid) is (0 in was.grid)
        and launch.shared_bytes == was.shared_bytes
        and launch.cluster == was.cluster
        and _equal(launch.constants, was.constants)
        and _equal(launch.options, was.options)
        and _alike_arguments(launch, was, same)
    )


def _equal(values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    if [*values] != [*others]:
        return False
    for value, other in zip(values.values(), others.values(), strict=True):
        if type(value) is not type(other) or value != other:
            return False
        # equal zeros may differ in sign, and items of a list in type
        if type(value) not in _TOLD and exact(value) != exact(other):
            return False
    return True


def _alike_arguments(launch: Launch, was: Launch, same: SameNumber | None) -> bool:
    if len(launch.args) != len(was.args):
        return False
    for place, (argument, other) in enumerate(zip(launch.args, was.args, strict=True)):
        if argument is not other:
            if type(argument) is not type(other) or (type(argument) is str and argument != other):
                return False
            if type(argument) is not str and same is not None and not same(launch, place, argument, other):
                return False
    return True


_TOLD = frozenset({int, str, bool})
"""Types whose values are the same where they are equal."""


class Forms(Generic[_Form]):
    """Forms of bound launches by key; the oldest is dropped when there are too many. Safe to read from any thread."""

    def __init__(self, most: int = MOST_FORMS) -> None:
        self._most = most
        self._forms: dict[Hashable, _Form] = {}

    def get(self, key: Hashable) -> _Form | None:
        """The form, None where nothing of the kind was bound yet or where the key cannot be hashed."""
        try:
            return self._forms.get(key)
        except TypeError:
            return None

    def put(self, key: Hashable, form: _Form) -> None:
        try:
            self._forms[key] = form
        except TypeError:
            return
        while len(self._forms) > self._most:
            self._forms.pop(next(iter(list(self._forms))), None)
