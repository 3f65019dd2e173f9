"""Forms of launches, found by all that compiled code depends on: another size finds its kernel without a hash."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

from ..artifact import Signature
from ..implementation import Launch, Run
from ..problem import exact_items
from .written_run import WrittenForm, WrittenRun

MOST_FORMS = 8192
"""The most forms of one backend, some KiB each. A dropped form is made again from the kernels, which stay loaded."""

_Form = TypeVar("_Form", bound=WrittenForm)


def launch_key(
    launch: Launch, number: Callable[[int, Any], Hashable] = lambda _place, value: type(value).__name__
) -> Hashable:
    """Key of everything in a launch that compiled code may depend on; of the grid only whether an extent is 0.

    ``number(place, value)`` is the key of a number, argument ``place`` of the launch; by default its type.
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
    """Key of everything that the compiled text of a run depends on; ``others`` are a backend's additions."""
    return (*keys, signature.form, device, *others)


class Forms(Generic[_Form]):
    """Forms of bound launches by key; the oldest is dropped when there are too many. Safe to read from any thread."""

    def __init__(self, most: int = MOST_FORMS) -> None:
        self._most = most
        self._forms: dict[Hashable, _Form] = {}

    def get(self, key: Hashable) -> _Form | None:
        """The form of that key; None if there is none yet or the key cannot be hashed."""
        try:
            return self._forms.get(key)
        except TypeError:
            return None

    def run(
        self,
        key: Hashable,
        launches: tuple[Launch, ...],
        make_launches: Callable[..., tuple[Launch, ...]] | None = None,
        make_twin: Callable[..., Run] | None = None,
        given: tuple[Any, ...] = (),
    ) -> WrittenRun | None:
        """A run of launches by the form of that key, with the other parameters of ``WrittenRun``; None without one."""
        form = self.get(key)
        numbers = None if form is None else form.numbers(launches)
        return None if form is None or numbers is None else WrittenRun(form, numbers, make_launches, make_twin, given)

    def put(self, key: Hashable, form: _Form) -> None:
        try:
            self._forms[key] = form
        except TypeError:
            return
        while len(self._forms) > self._most:
            self._forms.pop(next(iter(list(self._forms))), None)
