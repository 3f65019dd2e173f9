"""What plugins of pytest do at each test or in each process, and no test here needs: left out. And fixed draws.

With parts of pytest and Hypothesis that are private: where they are others, the plugins do what they ever did.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from importlib import metadata
from typing import Any


class RootLogs:
    """The context in which pytest captures logs by a handler: of the root logger alone, to which ours propagate.

    pytest's own adds the handler to all loggers that do not propagate, 62 of torch's and others, and does so six times
    a test: half a millisecond of each.
    """

    def __init__(self, handler: logging.Handler, level: int | None = None) -> None:
        self.handler = handler
        self.level = level
        self.before = logging.root.level

    def __enter__(self) -> logging.Handler:
        logging.root.addHandler(self.handler)
        self.before = logging.root.level
        if self.level is not None:
            self.handler.setLevel(self.level)
            logging.root.setLevel(min(self.before, self.level))
        return self.handler

    def __exit__(self, *_: object) -> None:
        if self.level is not None:
            logging.root.setLevel(self.before)
        logging.root.removeHandler(self.handler)


def capture_root_logs() -> None:
    """Have pytest capture what reaches the root logger, and look for no other loggers."""
    with contextlib.suppress(ImportError, AttributeError):
        from _pytest import logging as plugin

        if plugin.catching_logs:
            plugin.catching_logs = RootLogs  # type: ignore[assignment, misc]


def draw_no_constants_of_ours() -> None:
    """Have Hypothesis draw no texts and numbers that stand in our modules, whose sources each process would parse.

    On a fresh checkout that takes 1.8 s of a core, in each process of a run.
    """
    if "hypothesis" not in sys.modules:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        none = providers._local_constants
        if providers._get_local_constants:
            providers._get_local_constants = lambda: none


def draw_few() -> None:
    """Have Hypothesis draw 25 examples of each test that does not say how many, and not 100."""
    with contextlib.suppress(ImportError, AttributeError):
        from hypothesis import settings

        settings.register_profile("quick", max_examples=25)
        settings.load_profile("quick")


def draw_the_same_each_time() -> None:
    """Have Hypothesis draw the same values in each run, as ``--hypothesis-seed=0`` does.

    Then a change fails by what it changed, and not by an example that no run before has drawn.
    """
    core = sys.modules.get("hypothesis.core")
    if core is not None and getattr(core, "global_force_seed", None) is None:
        core.global_force_seed = 0  # type: ignore[attr-defined]


SHARES_STATEMENTS = True
"""False where a test counts what a database holds, its compiled statements with it."""


class _Statements(dict[Any, Any]):
    """Compiled statements of SQLAlchemy by all of their keys but the first: the dialect, an object of each engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


def compile_statements_once() -> None:
    """Have SQLAlchemy compile a statement once for each kind of database, and not for each database that is opened.

    A test opens one of its own, for which to compile what is asked of it took a sixth of the time.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from sqlalchemy import Engine

        made, kept = Engine.__init__, dict[str, _Statements]()

        def make(self: Any, *arguments: Any, **options: Any) -> None:
            made(self, *arguments, **options)
            if SHARES_STATEMENTS and hasattr(self, "_compiled_cache"):
                self._compiled_cache = kept.setdefault(self.dialect.name, _Statements())

        Engine.__init__ = make  # type: ignore[method-assign]


def look_for_plugins_once() -> None:
    """Have all distributions on a path asked for their plugins once: a catalog does so in a third of its time."""
    look = metadata.entry_points
    known = functools.cache(lambda path, group: look(group=group))

    def entry_points(**asked: Any) -> Any:
        return known(tuple(sys.path), asked["group"]) if asked.keys() == {"group"} else look(**asked)

    metadata.entry_points = entry_points  # type: ignore[assignment]
