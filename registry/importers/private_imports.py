"""Modules that a foreign file imports from its own folders, unseen by other files with a ``utils`` of their own."""

from __future__ import annotations

import builtins
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_SWAPPING = threading.RLock()
"""Held while modules and folders are swapped, which are the whole process's."""
_OURS = frozenset({"registry", "tuning_db"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_IMPORTS = re.compile(r"^(?P<indent>[ \t]*)(?:from[ \t]+(?P<root>\w+)|import[ \t]+(?P<roots>[\w., \t]+))", re.MULTILINE)


class PrivateImports:
    """The imports of one file. ``folders``: where they may lie, the first that has one counts.

    ``supplied``: modules for names that no folder has.
    """

    def __init__(self, text: str, folders: Sequence[Path], supplied: Mapping[str, ModuleType] | None = None) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._modules: dict[str, ModuleType] = {}
        self._imported: dict[tuple[str, tuple[str, ...]], ModuleType] = {}
        found = list(_roots(text))
        self._names = {root for root, _ in found if self._has(root)}
        for name, module in (supplied or {}).items():
            if name in {root for root, _ in found} - self._names:
                self._names.add(name)
                self._modules[name] = module
        self._is_late = any(indented and root in self._names for root, indented in found)

    def _has(self, root: str) -> bool:
        places = [place for each in self._folders for place in (each / f"{root}.py", each / root / "__init__.py")]
        return not _is_shared(root) and any(place.is_file() for place in places)

    def prepare(self, module: ModuleType) -> None:
        """Let functions of the module, which has not run yet, import the same modules when they are called."""
        if self._is_late:
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}

    def _import(
        self,
        name: str,
        globals: Any = None,  # noqa: A002
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if level or name.partition(".")[0] not in self._names:
            return builtins.__import__(name, globals, locals, fromlist, level)
        asked = name, tuple(fromlist or ())
        # what was imported once is there at once: an import within a timed call takes no longer than Python's own
        if asked not in self._imported:
            with self.visible():
                self._imported[asked] = builtins.__import__(name, globals, locals, fromlist, level)
        return self._imported[asked]

    @contextmanager
    def visible(self) -> Iterator[None]:
        """A context in which the folders are looked at first, and what was imported from them before is there."""
        with _SWAPPING:
            known, path = set(sys.modules), list(sys.path)
            others = {name: sys.modules.pop(name) for name in list(sys.modules) if self._is_private(name)}
            sys.modules.update(self._modules)
            sys.path[:0] = map(str, self._folders)
            try:
                yield
            finally:
                sys.path[:] = path
                for name in list(sys.modules):
                    if self._is_private(name) or (name not in known and self._lies_here(name)):
                        self._modules[name] = sys.modules.pop(name)
                sys.modules.update(others)

    def _is_private(self, name: str) -> bool:
        return name in self._modules or name.partition(".")[0] in self._names

    def _lies_here(self, name: str) -> bool:
        """Whether a module, which one of the folders' imported, lies there itself."""
        file = getattr(sys.modules[name], "__file__", None)
        return file is not None and Path(file).parent in self._folders


def _is_shared(root: str) -> bool:
    """Whether a name is that of the interpreter's own, or of an installed package that is in use: no file hides it."""
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in sys.stdlib_module_names or root in _OURS or not _INSTALLED.isdisjoint(Path(file).parts)


def _roots(text: str) -> Iterator[tuple[str, bool]]:
    """The first names of what a text imports, and whether the import is indented, so that it may run later."""
    for one in _IMPORTS.finditer(text):
        for part in (one["root"] or one["roots"]).split(","):
            if root := part.strip().split(" ")[0].partition(".")[0]:
                yield root, bool(one["indent"])
