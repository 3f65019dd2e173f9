"""What plugins of pytest do at each test or in each process, and no test here needs: left out. And fixed draws.

With parts of pytest and Hypothesis that are private: where they are others, the plugins do what they ever did.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from types import FunctionType, MethodType, ModuleType
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
    """Have all distributions on a path asked for their plugins once: a catalog does so in a third of its time.

    And each that has some for its name and version.
    """
    with contextlib.suppress(AttributeError):
        once = functools.cached_property(metadata.Distribution.metadata.fget)  # type: ignore[attr-defined]
        once.__set_name__(metadata.Distribution, "metadata")
        metadata.Distribution.metadata = once  # type: ignore[assignment, method-assign]
    look = metadata.entry_points
    known = functools.cache(lambda path, group: look(group=group))

    def entry_points(**asked: Any) -> Any:
        return known(tuple(sys.path), asked["group"]) if asked.keys() == {"group"} else look(**asked)

    metadata.entry_points = entry_points  # type: ignore[assignment]


def look_at_plugins_once() -> None:
    """Have a package be asked once whether one of its submodules has the name of a hook, and modules be read as dicts.

    Each catalog looked for these submodules on the disk again, and pluggy looked at all names of a module as if they
    were names of any object. A catalog is made in a third of its time.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from pluggy import _manager

        from registry.discovery import loading

        loading._refuse_name_of_submodule = functools.cache(loading._refuse_name_of_submodule)
        _manager._static_hook_attr = functools.partial(_hook_of, _manager._static_hook_attr)


def _hook_of(read: Callable[[object, str], Any], holder: object, name: str) -> Any:
    """What ``read`` returns: the holder of a hook's marker and its function, or None."""
    value = vars(holder).get(name) if type(holder) is ModuleType else holder
    if value is holder or isinstance(value, classmethod | staticmethod | MethodType):
        return read(holder, name)
    return (value, value) if isinstance(value, FunctionType) else None


_OF_A_TEST = frozenset({"logstart", "testreport", "logfinish"})


def tell_of_a_test_at_once(plugins: Iterable[Any]) -> None:
    """Have a process of a run tell in one piece what there is to tell of a test, when the test has ended.

    By itself xdist writes six times a test to the process that reports, which then takes the core to read it.
    """
    with contextlib.suppress(AttributeError, StopIteration):
        teller = next(plugin for plugin in plugins if type(plugin).__name__ == "WorkerInteractor")
        pipe, send, held = teller.channel.gateway._io, teller.sendevent, list[bytes]()
        write = pipe.write

        def write_all(data: bytes) -> None:
            pieces, held[:] = [*held, data], []
            write(b"".join(pieces))

        def sendevent(name: str, **told: Any) -> None:
            pipe.write = held.append if name in _OF_A_TEST else write_all
            send(name, **told)
            pipe.write = write_all

        teller.sendevent = sendevent
