"""The dispatcher: every op's calls, over one catalog and one tuning database."""

from __future__ import annotations

import enum
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch.compiler import is_dynamo_compiling

from ..api_checks import checked_flag, database_of, file_of, name_of_op
from ..contract import Op
from ..device import Device
from ..discovery.catalog import Catalog, loading_catalog
from ..errors import RegistryError
from ..forking import renewed_in_child
from ..implementation import Implementation
from ..problem import Problem
from ..tracing import constant_while_tracing, let_through
from .bound_op import BoundOp
from .data_checks import checking
from .explain import Explanation, explained_problem
from .forcing import Forced, ForcedChoice, Forcing
from .hit.hot_path import CallAnswer
from .mode import Mode, checked_mode, mode_of
from .plans.prepared import BUDGET, forget_prepared
from .plans.prepared_budget import checked_bytes
from .recording.recorder import Recorder
from .resolve.winners import Winners


class Keep(enum.Enum):
    """The type of ``KEEP``, the default of ``configure`` for settings that stay as they are."""

    IT = enum.auto()


KEEP = Keep.IT


class Dispatcher:
    """Runs ops. A new one is cheap: no plugin is imported and no database opened before the first call."""

    def __init__(self, catalog: Catalog | None = None, database: str | None = None) -> None:
        self.catalog = Catalog() if catalog is None else catalog
        self.forcing = Forcing()
        self.recorder = Recorder()
        self._mode: Mode | None = None
        self._checking: bool | None = None
        self.inline = True
        """Whether compiled code may contain winners, and call plans directly; see ``configure``."""
        self.check_once: Callable[[], bool] | None = None
        """Called before a call is answered that the hot path does not know, until it returns True."""
        self._swapping = False
        self._reloading = renewed_in_child(self, "_reloading", threading.Lock)
        self._winners = Winners(database)
        self._bound: dict[str, BoundOp] = {}
        self._calls: dict[str, CallAnswer] = {}
        self._seen = self.catalog.generation
        self._lock = renewed_in_child(self, "_lock", threading.RLock)
        self._ensure = _finder(self)

    def call(self, op: str, /, *args: Any, **attributes: Any) -> Any:
        """Run ``op`` on these arguments by the fastest known implementation.

        Raises UnknownNameError for an unknown op and, before anything is launched, InvalidArgumentError for arguments
        that it does not accept (ArgumentTypeError, which is also a TypeError, for their number and types).
        """
        if is_dynamo_compiling():
            self._ensure(op)
            return self._bound[op].traced(args, attributes)
        try:
            taken = self._calls[op]
        except (KeyError, TypeError):
            taken = self.bound(op).taken
        return taken(args, attributes)

    def op(self, name: str) -> Callable[..., Any]:
        """``call`` bound to one op, for the hottest loops. Raises UnknownNameError.

        It raises as ``call`` does; for an argument given twice Python's own TypeError.
        """
        if is_dynamo_compiling():
            self._ensure(name)
            return self._bound[name].call
        return self.bound(name).call

    def bound(self, name: str) -> BoundOp:
        """The bound op of that name."""
        name = name_of_op(name)
        self._follow()
        with self._lock:
            if name not in self._bound:
                op = self.catalog.op(name)
                bound = BoundOp(
                    op,
                    self.catalog,
                    lambda: self._winners,
                    self.forcing,
                    self._follow,
                    self.bound,
                    self.recorder,
                    self.mode,
                    self.checking(),
                )
                self._bound[name] = bound
                self._calls[name] = bound.taken
            return self._bound[name]

    def explain(self, op: str, /, *args: Any, **attributes: Any) -> Explanation:
        """Explain which implementation ``call`` runs with these arguments, and why."""
        return self.bound(op).explain(*args, **attributes)

    def explain_problem(self, problem: Problem, device: Device | None = None) -> Explanation:
        """Explain the first choice for a problem, without tensors; nothing is built."""
        bound = self.bound(problem.op)
        situation = bound.plans.situation(problem, device or Device.best())
        return explained_problem(situation, self.forcing.of(problem.op), self.mode())

    def using(self, **choices: ForcedChoice) -> AbstractContextManager[None]:
        """Force implementations in a with block of this thread: ``using(softmax="triton.row")``.

        A value is a name, or a name with a config; an op of a plugin is written ``**{"acme::row_sum": ...}``. Raises
        UnknownNameError at once; a call that the implementation cannot run raises UnsupportedError.
        """
        forced = {op: Forced.parse(op, wanted) for op, wanted in choices.items()}
        for op, wanted in forced.items():
            self.catalog.implementation(op, wanted.implementation)
        return self.forcing.using(forced)

    def register(self, implementation: Implementation) -> None:
        """Add an implementation of a known op to this process; in a file that is loaded as a plugin, to the plugin.

        Raises UnknownNameError for an unknown op, InvalidDefinitionError for a faulty implementation. An implementation
        may be added again when its class was defined again, as in a notebook.
        """
        (loading_catalog() or self.catalog).register(implementation)
        self._follow()

    def define(self, op: Op) -> None:
        """Add an op named ``vendor::name`` to this process; in a file that is loaded as a plugin, to the plugin.

        Raises InvalidDefinitionError when the name is taken, or when an installed plugin has the vendor's name.
        """
        (loading_catalog() or self.catalog).define(op)
        self._follow()

    def load_file(self, path: str | Path) -> None:
        """Load a .py file as a plugin, with all that it marks, defines and registers, here and in ``tune``'s processes.

        A file that is loaded already is not loaded again. Raises PluginError when anything about it is wrong.
        """
        self.catalog.load_file(file_of("load_file", path))
        self._follow()

    def configure(
        self,
        *,
        database: str | Path | Keep | None = KEEP,
        mode: Mode | Keep = KEEP,
        prepared_bytes: int | Keep | None = KEEP,
        inline: bool | Keep = KEEP,
    ) -> None:
        """Change the settings of dispatch from now on; settings that are not given stay as they are.

        ``database``: the file or SQLAlchemy URL of the winners; None for the default place. ``mode``: "tuned" (the best
        known candidate), "verified" (winners tuned on this hardware with this software, else torch's own functions:
        neither shipped winners nor a plugin's default), "reference" (always the op's reference: no kernel is built,
        ``using`` has no effect) or "strict" (NotTunedError where only a heuristic could choose). Without a mode
        ``KERNEL_REGISTRY_MODE`` decides. ``prepared_bytes``: the most bytes that prepared weights of the process may
        hold on each device, before the least recently used are dropped; None for ``KERNEL_REGISTRY_PREPARED_BYTES``,
        else a quarter of the device's memory. ``inline`` (True at first): whether code that torch.compile compiles from
        now on for static shapes may contain the torch code of winners, and call plans directly; False leaves each call
        an operator of torch. Plans and winners in memory are dropped. Raises InvalidArgumentError for anything else,
        and then changes nothing.
        """
        budget = prepared_bytes if isinstance(prepared_bytes, Keep) else checked_bytes(prepared_bytes)
        wanted = None if isinstance(mode, Keep) else checked_mode(mode)
        place = database if isinstance(database, Keep) else database_of("configure", database)
        inlines = inline if isinstance(inline, Keep) else checked_flag("configure", "inline", inline)
        with self._lock:
            if not isinstance(inlines, Keep):
                self.inline = inlines
            if not isinstance(budget, Keep):
                BUDGET.given = budget
            if wanted is not None:
                self._mode = wanted
            if not isinstance(place, Keep):
                self._winners = Winners(place, retry=True)
            self.forget()

    def mode(self) -> Mode:
        """The mode: as configured, else as ``KERNEL_REGISTRY_MODE`` says."""
        if self._mode is None:
            self._mode = mode_of()
        return self._mode

    def checking(self) -> bool:
        """Whether calls check the contents of their tensors, as ``KERNEL_REGISTRY_CHECK`` said at the first call."""
        if self._checking is None:
            self._checking = checking()
        return self._checking

    def reload(self) -> int:
        """Read the stored winners again; returns the number of problems whose winners changed.

        All winners are read before they replace the old ones, for all ops at one moment: a call that begins after
        another call has used a new winner uses new ones too. Raises StoreError, and keeps the old winners, when they
        cannot be read.
        """
        with self._reloading:
            old = self._winners
            fresh = old.reread()
            changed = fresh.changed_since(old)
            anew = changed > 0 or fresh.learnt_since(old)
            with self._lock, self.forcing.closed():
                if self._winners is not old:
                    return 0  # configured again in the meantime: nothing old is in memory any more
                self._swapping = True
                try:
                    self._winners = fresh
                    for bound in self._bound.values() if anew else ():
                        bound.clear()
                finally:
                    self._swapping = False
        if anew:
            forget_prepared()
        return changed

    def __reduce__(self) -> tuple[Callable[[], Dispatcher], tuple[()]]:
        """A reference to the process's dispatcher, by which a ``registry.call`` held in a model is copied and pickled.

        Raises PicklingError for any other dispatcher.
        """
        from ..calls import dispatcher_of_process

        if self is not dispatcher_of_process():
            raise pickle.PicklingError("only the dispatcher of registry.call is copied and pickled, as a reference")
        return dispatcher_of_process, ()

    @property
    def database(self) -> str | None:
        """The database of the winners; None is the default place."""
        return self._winners.database

    def winners_identity(self) -> tuple[str, str]:
        """The id of the release that is read, and a hash of all winners that are read; "" for none.

        Raises ReleaseError if the pinned release is not found, StoreError for a database that cannot be read.
        """
        return self._winners.identity()

    def forget(self) -> None:
        """Drop all plans, winners and prepared tensors in memory, so that new winners and implementations are used."""
        with self._lock:
            self._seen = self.catalog.generation
            self._winners = Winners(self._winners.database)
            for bound in self._bound.values():
                bound.clear()
        forget_prepared()

    def _follow(self) -> None:
        if self._swapping:
            with self._lock:
                pass
        if self.catalog.generation != self._seen:
            self.forget()
        if self.check_once is not None and self.check_once():
            self.check_once = None


def _finder(dispatcher: Dispatcher) -> Callable[[str], bool]:
    """A function that finds an op before torch.compile traces a call of it, so that dynamo does not trace plugins."""

    def find(op: str) -> bool:
        try:
            dispatcher.bound(op)
        except RegistryError as fault:
            raise let_through(fault) from None
        # all ops at once: dynamo reads a dict once per trace, and would miss what a second op adds to it
        for name in dispatcher.catalog.ops():
            dispatcher.bound(name)
        return True

    # a function, since dynamo traces into partials and methods
    return constant_while_tracing(find)
