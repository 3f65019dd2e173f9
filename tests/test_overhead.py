"""What is left out of pytest's plugins takes nothing from a test: logs are captured, and levels are put back.

Nor does what is asked once, and told at once.
"""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy
import pytest

from .overhead import RootLogs, tell_of_a_test_at_once


def test_what_ours_log_is_captured_at_the_level_that_is_set(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(RootLogs.__module__)
    caplog.set_level(logging.INFO, logger.name)
    logger.info("told")
    logger.debug("not told")
    assert caplog.messages == ["told"]
    assert caplog.handler in logging.root.handlers


def test_the_root_logger_is_left_as_it_was() -> None:
    handler, level = logging.StreamHandler(), logging.root.level
    with RootLogs(handler, logging.DEBUG) as entered:
        assert entered in logging.root.handlers
        assert (logging.root.level, handler.level) == (logging.DEBUG, logging.DEBUG)
    assert handler not in logging.root.handlers
    assert logging.root.level == level


def test_hooks_of_a_module_are_its_marked_functions() -> None:
    mark, module, manager = pluggy.HookimplMarker("shop"), ModuleType("shop_plugin"), pluggy.PluginManager("shop")

    class Till:
        @mark
        def bound(self) -> str:
            return "bound"

    vars(module).update(
        function=mark(lambda: "function"), static=staticmethod(mark(lambda: "static")), bound=Till().bound,
        kind=mark(Till), plain=lambda: "plain", number=3,
    )  # fmt: skip
    manager.register(module)
    assert {caller.name: caller() for caller in manager.get_hookcallers(module) or ()} == {
        "function": ["function"], "static": ["static"], "bound": ["bound"],
    }  # fmt: skip


class WorkerInteractor:
    """Tells by writing a name."""

    def __init__(self, written: list[bytes]) -> None:
        pipe = SimpleNamespace(write=written.append)
        self.channel = SimpleNamespace(gateway=SimpleNamespace(_io=pipe))

    def sendevent(self, name: str, **_: Any) -> None:
        self.channel.gateway._io.write(f"{name} ".encode())


def test_what_there_is_to_tell_of_a_test_is_told_in_order_and_in_one_piece() -> None:
    written: list[bytes] = []
    teller = WorkerInteractor(written)
    tell_of_a_test_at_once([object(), teller])
    for name in ("collectionfinish", "logstart", "testreport", "testreport", "logfinish", "runtest_protocol_complete"):
        teller.sendevent(name)
    teller.sendevent("workerfinished")
    of_the_test = b"logstart testreport testreport logfinish runtest_protocol_complete "
    assert written == [b"collectionfinish ", of_the_test, b"workerfinished "]
