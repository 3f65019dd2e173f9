"""The dispatcher: every op's calls, over one catalog and one tuning database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.compiler import is_dynamo_compiling

from ..device import Device
from ..discovery import Catalog
from ..errors import ArgumentTypeError, RegistryError
from ..implementation import Implementation
from ..problem import Problem
from ..tracing import constant_while_tracing, let_through
from .bound_op import BoundOp
from .explain import Explanation, explained_problem
from .forcing import Forced, Forcing, Wanted
from .prepared import forget_prepared
from .winners import Winners


class Dispatcher:
    """Runs ops. Making one is cheap: nothing is imported, found or opened before the first call."""

    def __init__(self, catalog: Catalog | None = None, database: str | None = None) -> None:
        self.catalog = Catalog() if catalog is None else catalog
        self.forcing = Forcing()
        self._winners = Winners(database)
        self._bound: dict[str, BoundOp] = {}
        self._calls: dict[str, Callable[..., Any]] = {}
        self._seen = self.catalog.generation
        self._lock = threading.RLock()
        self._ensure = _finder(self)

    def call(self, op: str, /, *args: Any, **attributes: Any) -> Any:
        """Run ``op`` on these arguments by whatever is the fastest known implementation here.

        Raises UnknownNameError for an op that nobody defines and InvalidArgumentError, before anything is launched,
        for arguments that it does not accept (ArgumentTypeError, a TypeError too, for their number and types).
        """
        if is_dynamo_compiling():
            self._ensure(op)
            return self._bound[op].traced(args, attributes)
        try:
            run = self._calls[op]
        except (KeyError, TypeError):
            run = self.op(op)
        return run(*args, **attributes)

    def op(self, name: str) -> Callable[..., Any]:
        """``call`` bound to one op, for the hottest loops. Raises UnknownNameError."""
        return self.bound(name).call

    def bound(self, name: str) -> BoundOp:
        """One op's tables and counters."""
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"the name of an op must be a str, got {name!r:.80}", hint='expected e.g. registry.call("softmax", x)'
            )
        self._follow_catalog()
        with self._lock:
            if name not in self._bound:
                op = self.catalog.op(name)
                bound = BoundOp(op, self.catalog, lambda: self._winners, self.forcing, self._follow_catalog)
                self._bound[name] = bound
                self._calls[name] = bound.call
            return self._bound[name]

    def explain(self, op: str, /, *args: Any, **attributes: Any) -> Explanation:
        """What ``call`` does with these arguments, and why."""
        return self.bound(op).explain(*args, **attributes)

    def explain_problem(self, problem: Problem, device: Device | None = None) -> Explanation:
        """What would be tried first for a problem, without tensors; nothing is built."""
        bound = self.bound(problem.op)
        situation = bound.plans.situation(problem, device or Device.best())
        return explained_problem(situation, self.forcing.of(problem.op))

    def using(self, **choices: Wanted) -> AbstractContextManager[None]:
        """Force implementations in a with block of this thread: ``using(softmax="triton.row")``.

        A value is a name, or a name with a config; an op of a plugin is written ``**{"acme::row_sum": ...}``. Raises
        UnknownNameError at once; a call that the implementation cannot run raises UnsupportedError.
        """
        forced = {op: Forced.parse(op, wanted) for op, wanted in choices.items()}
        for op, wanted in forced.items():
            self.catalog.implementation(op, wanted.implementation)
        return self.forcing.using(forced)

    def register(self, implementation: Implementation) -> None:
        """Add an implementation; see ``Catalog.register``."""
        self.catalog.register(implementation)
        self.forget()

    def configure(self, *, database: str | None) -> None:
        """Take winners from another database from now on: an SQLAlchemy URL or a file, None for the default place."""
        self._winners = Winners(database)
        self.forget()

    @property
    def database(self) -> str | None:
        """Where winners come from; None is the default place."""
        return self._winners.database

    def forget(self) -> None:
        """Drop every plan, all winners in memory and what was prepared: new winners and implementations are seen."""
        with self._lock:
            self._seen = self.catalog.generation
            self._winners = Winners(self._winners.database)
            for bound in self._bound.values():
                bound.clear()
        forget_prepared()

    def _follow_catalog(self) -> None:
        if self.catalog.generation != self._seen:
            self.forget()


def _finder(dispatcher: Dispatcher) -> Callable[[str], bool]:
    """Finds an op before torch.compile traces a call of it: plugins are not for dynamo to trace through."""

    def find(op: str) -> bool:
        try:
            dispatcher.op(op)
        except RegistryError as fault:
            raise let_through(fault) from None
        return True

    # a function, since dynamo looks through partials and methods
    return constant_while_tracing(find)
