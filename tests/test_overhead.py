"""What is left out of pytest's plugins takes nothing from a test: logs are captured, and levels are put back."""

from __future__ import annotations

import logging

import pytest

from .overhead import RootLogs


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
