"""The two decorators of a plugin, and the hookspec of an op."""

from __future__ import annotations

from typing import Any

import pluggy
import pytest

from registry.contracts import BOX
from registry.discovery.hooks import DEFINES, PROJECT, defines, hook_of, implements, op_of, specification
from registry.errors import InvalidDefinitionError


def _hooks_of(plugin: object, *ops: str) -> set[str]:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specification(DEFINES, "ops"))
    for op in BOX:
        if op.name in ops:
            manager.add_hookspecs(specification(op.hook, op.schema))
    manager.register(plugin)
    manager.check_pending()
    return {caller.name for caller in manager.get_hookcallers(plugin) or []}


def test_the_functions_own_name_means_nothing() -> None:
    class Plugin:
        @implements("softmax")
        def anything(self) -> list[Any]:
            return []

    assert _hooks_of(Plugin(), "softmax") == {"softmax"}


def test_a_name_with_a_vendor_is_one_hook() -> None:
    assert hook_of("acme::row_sum") == "acme__row_sum"
    assert op_of("acme__row_sum") == "acme::row_sum"
    assert op_of("softmax") == "softmax"


def test_ops_are_offered_through_a_hook_of_their_own() -> None:
    class Plugin:
        @defines
        def mine(self) -> list[Any]:
            return []

    assert _hooks_of(Plugin()) == {DEFINES}


def test_every_op_in_the_box_yields_a_hookspec_without_arguments() -> None:
    manager = pluggy.PluginManager(PROJECT)
    for op in BOX:
        manager.add_hookspecs(specification(op.hook, op.schema))
        caller = getattr(manager.hook, op.hook)
        assert caller.has_spec()
        assert caller.spec.argnames == ()


def test_a_hook_that_nobody_specified_is_pending() -> None:
    class Plugin:
        @implements("sofmax")
        def anything(self) -> list[Any]:
            return []

    with pytest.raises(pluggy.PluginValidationError, match="sofmax"):
        _hooks_of(Plugin(), "softmax")


def test_implements_without_a_name_says_what_is_missing() -> None:
    with pytest.raises(InvalidDefinitionError, match='@implements\\("softmax"\\)'):
        implements(list)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [3, dict])
def test_what_is_no_function_is_not_marked(what: Any) -> None:
    for mark in (implements("softmax"), defines):
        with pytest.raises(InvalidDefinitionError, match=r"is no function\n  mark a function without arguments"):
            mark(what)


def test_a_function_cannot_implement_two_ops() -> None:
    with pytest.raises(InvalidDefinitionError, match="marked twice"):

        @implements("softmax")
        @implements("square")
        def both() -> list[Any]:
            return []

    with pytest.raises(InvalidDefinitionError, match="marked twice"):

        @defines
        @implements("square")
        def mixed() -> list[Any]:
            return []
