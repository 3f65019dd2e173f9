"""A file of somebody else's: its text, its hash, and the module that it is when it runs."""

from __future__ import annotations

import hashlib
import importlib.util
import keyword
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from ..discovery.file_import import spec_of_file
from ..errors import InvalidDefinitionError, UnsupportedError
from ..fingerprint import PythonText
from ..untrusted.file_kinds import refuse_pipe
from .private_imports import PrivateImports

_NOT_A_NAME = re.compile(r"[^a-z0-9]+")


def plain_name(text: str) -> str:
    """``text`` as a name of an op or implementation: small letters, digits and ``_``, a letter first; no keyword."""
    made = _NOT_A_NAME.sub("_", text.lower()).strip("_") or "unnamed"
    return f"p_{made}" if keyword.iskeyword(made) else made if made[0].isalpha() else f"p{made}"


@dataclass(frozen=True)
class ForeignFile:
    """A file and the SHA-256 that it must have ("": any). Nothing of it runs before ``module`` is called.

    It may import what lies beside it, what its suite keeps one folder up, and before these what is in ``folders``;
    ``supplied`` are modules for names that no folder has.
    """

    path: Path
    sha256: str = ""
    folders: tuple[Path, ...] = ()
    supplied: Mapping[str, ModuleType] = field(default_factory=dict, compare=False)

    @cached_property
    def text(self) -> str:
        """The file's text. Raises InvalidDefinitionError if it cannot be read, or is not the pinned one."""
        try:
            refuse_pipe(self.path)
            data = self.path.read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError) as fault:
            raise InvalidDefinitionError(f"{self.path}: {fault}", hint="expected a text file") from fault
        found = hashlib.sha256(data).hexdigest()
        if self.sha256 and found != self.sha256:
            raise InvalidDefinitionError(
                f"{self.path} has changed: its SHA-256 is {found[:12]}…, {self.sha256[:12]}… was imported",
                hint="look at the change, then import it again",
            )
        return text

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def version(self) -> int:
        """A number that is another one for another text: the version of an op that the file defines."""
        return zlib.crc32(self.text.encode()) & 0x7FFFFFFF

    @property
    def source(self) -> PythonText | str:
        """The text as a fingerprint takes it: as syntax if it is Python's, else as it is."""
        try:
            compile(self.text, str(self.path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return self.text
        return PythonText(self.text)

    def module(self) -> ModuleType:
        """The module, run once in this process. Raises UnsupportedError with the fault that it ended with."""
        name = f"foreign_{plain_name(self.path.stem)}_{self.digest[:12]}"
        if self.folders:
            name += f"_{zlib.crc32(repr(self.folders).encode()):08x}"
        if name in sys.modules:
            return sys.modules[name]
        spec = spec_of_file(name, self.path)
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        folders = [*self.folders, self.path.parent, self.path.parent.parent]
        imports = PrivateImports(self.text, folders, self.supplied)
        imports.prepare(module)
        try:
            with imports.visible():
                spec.loader.exec_module(module)
        except BaseException as fault:
            sys.modules.pop(name, None)
            if isinstance(fault, KeyboardInterrupt):
                raise
            hint = f"it may lie in {', '.join(map(str, dict.fromkeys(folders)))}" if _lacks_module(fault) else ""
            told = f"{self.path.name} cannot be imported: {type(fault).__name__}: {fault}"
            raise UnsupportedError(told, hint=hint) from fault
        return module

    def member(self, name: str) -> Any:
        """The value of the module's attribute ``name``. Raises UnsupportedError if there is none, or if it is None."""
        found = getattr(self.module(), name, None)
        if found is None:
            raise UnsupportedError(f"{self.path.name} has no {name}")
        return found

    def defines(self, *names: str) -> bool:
        """Whether the text defines all of these classes, functions or values at its top level; nothing is run."""
        return all(re.search(rf"^(class|def)\s+{name}\b|^{name}\s*[:=]", self.text, re.MULTILINE) for name in names)


def _lacks_module(fault: BaseException) -> bool:
    return isinstance(fault, ModuleNotFoundError)
