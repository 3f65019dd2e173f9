"""Which modules and classes were written to: each kind of write tells, and nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from registry.tuner.workers import dictionary_writes
from registry.tuner.workers.dictionary_writes import NUMBERED, DictionaryWrites, dictionary_of

numbered = pytest.mark.skipif(not NUMBERED, reason="this interpreter numbers no dictionaries")


class Written:
    """Written to."""

    part: Any = min


def module() -> ModuleType:
    made = ModuleType("made")
    vars(made)["part"] = min
    return made


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="later interpreters number no dictionaries")
def test_this_interpreter_numbers_dictionaries() -> None:
    assert NUMBERED


@pytest.mark.parametrize("place", [module(), Written, DictionaryWrites], ids=lambda place: place.__name__)
def test_the_dictionary_is_the_one_that_is_written_to(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dictionary_of(place) == vars(place)
    monkeypatch.setattr(place, "another", max, raising=False)
    assert dictionary_of(place)["another"] is max


@numbered
@pytest.mark.parametrize(
    "write",
    [
        lambda names: names.update(part=max),
        lambda names: names.__setitem__("part", max),
        lambda names: names.__delitem__("part"),
        lambda names: names.pop("part"),
        lambda names: names.popitem(),
        lambda names: names.clear(),
        lambda names: names.setdefault("another", max),
        lambda names: names.__ior__({"part": max}),
        lambda names: exec("part = max", names),
        lambda names: exec("def f():\n global part\n part = max\nfor _ in range(99): f()", names),
    ],
)
def test_each_write_to_a_module_tells(write: Callable[[dict[str, Any]], object]) -> None:
    written, other, writes = module(), module(), DictionaryWrites()
    vars(written)["__builtins__"] = vars(other)["__builtins__"] = {"max": max, "range": range}
    for place in (other, written):
        writes.watch(place)
    assert list(writes.since_the_last_look()) == [0, 1]
    assert list(writes.since_the_last_look()) == []
    write(vars(written))
    assert list(writes.since_the_last_look()) == [1]
    assert list(writes.since_the_last_look()) == []


def set_often(place: Any) -> None:
    """As often as it takes until the interpreter has made the write faster."""
    for value in (max, min) * 99:
        place.part = value


@numbered
@pytest.mark.parametrize(
    "write",
    [
        lambda place: setattr(place, "part", max),
        lambda place: delattr(place, "part"),
        lambda place: type.__setattr__(place, "another", max),
        set_often,
    ],
)
def test_each_write_to_a_class_tells(write: Callable[[Any], None]) -> None:
    written, writes = type("Made", (), {"part": min}), DictionaryWrites()
    set_often(written)
    for place in (written, Written):
        writes.watch(place)
    assert list(writes.since_the_last_look()) == [0, 1]
    write(written)
    assert list(writes.since_the_last_look()) == [0]
    assert list(writes.since_the_last_look()) == []


@numbered
def test_reading_tells_nothing() -> None:
    place, writes = module(), DictionaryWrites()
    for each in (place, Written):
        writes.watch(each)
    writes.since_the_last_look()
    for _ in range(99):
        assert place.part is Written.part is min
    assert "part" in dir(place)
    assert list(vars(Written))
    assert list(writes.since_the_last_look()) == []


@numbered
def test_what_is_watched_later_is_told_once() -> None:
    writes = DictionaryWrites()
    writes.watch(module())
    writes.since_the_last_look()
    writes.watch(Written)
    assert list(writes.since_the_last_look()) == [1]
    assert list(writes.since_the_last_look()) == []


def test_all_may_have_been_written_to_where_nothing_is_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary_writes, "NUMBERED", False)
    writes = DictionaryWrites()
    for place in (module(), Written):
        writes.watch(place)
    for _ in range(2):
        assert list(writes.since_the_last_look()) == [0, 1]
