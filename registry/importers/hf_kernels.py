"""HF ``kernels`` packages: a folder with build variants, or a repository on the hub at a pinned revision."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..discovery.file_import import spec_of_file
from ..errors import InvalidDefinitionError, UnsupportedError
from ..implementation import Implementation
from ..paths import expanded, resolved
from .foreign_file import plain_name
from .hub import commit_at
from .submission import Submission

_SOURCES = frozenset({".py", ".so", ".cu", ".cpp", ".cuh", ".h"})


@dataclass(frozen=True)
class KernelPackage:
    """A package that is there on this machine, its function, and the SHA-256 over its files ("": any)."""

    folder: Path
    function: str
    sha256: str = ""

    @property
    def root(self) -> Path:
        """The import package: of the build variant for this machine, or of the sources. Raises UnsupportedError."""
        builds = self.folder / "build"
        for variant in [each for each in variants() if (builds / each).is_dir()]:
            inside = sorted(each.parent for each in (builds / variant).glob("*/__init__.py"))
            if inside or (builds / variant / "__init__.py").is_file():
                return inside[0] if inside else builds / variant
        sources = sorted((self.folder / "torch-ext").glob("*/__init__.py"))
        if sources:
            return sources[0].parent
        if (self.folder / "__init__.py").is_file():
            return self.folder
        there = ", ".join(sorted(each.name for each in builds.glob("*"))) or "none"
        raise UnsupportedError(
            f"{self.folder} has no build for this machine (builds: {there})", hint=f"expected {', '.join(variants())}"
        )

    def digest(self) -> str:
        """SHA-256 over names and bytes of the package's files. Raises InvalidDefinitionError if another was pinned."""
        total, root = hashlib.sha256(), self.root
        for path in sorted(each for each in root.rglob("*") if each.suffix in _SOURCES):
            total.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        found = total.hexdigest()
        if self.sha256 and found != self.sha256:
            raise InvalidDefinitionError(
                f"{self.folder} has changed: its hash is {found[:12]}…, {self.sha256[:12]}… was imported",
                hint="look at the change, then import it again",
            )
        return found

    def load(self) -> Callable[..., Any]:
        """The function, imported. Raises UnsupportedError."""
        module = _imported(self.root, self.digest())
        found: Any = module
        for part in self.function.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            public = ", ".join(name for name in dir(module) if not name.startswith("_"))
            raise UnsupportedError(f"{self.folder.name} has no function {self.function}", hint=f"it has {public}")
        function: Callable[..., Any] = found
        return function


def variants() -> tuple[str, ...]:
    """Names of build folders that this machine can use, the most special first."""
    major, minor = torch.__version__.split(".")[:2]
    abi = "cxx11" if torch.compiled_with_cxx11_abi() else "cxx98"
    system = f"{platform.machine()}-{platform.system().lower()}"
    cuda = torch.version.cuda
    toolkit = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    named = f"torch{major}{minor}-{abi}-{toolkit}-{system}"
    return (named, f"torch{major}{minor}-{abi}-cpu-{system}", "torch-cuda" if cuda else "torch-cpu", "torch-universal")


def package_of(text: str, sha256: str = "") -> KernelPackage:
    """The package of ``folder:function`` or of ``org/name@revision:function``, which is downloaded.

    Raises InvalidDefinitionError for a revision that is no commit, UnsupportedError for what cannot be downloaded
    or has no build for this machine.
    """
    place, _, function = text.rpartition(":")
    if not place or not function:
        raise InvalidDefinitionError(
            f"kernels package {text!r}", hint="expected FOLDER:function or ORG/NAME@COMMIT:function"
        )
    if expanded(place).is_dir():
        return KernelPackage(resolved(place), function, sha256)
    # a package holds builds for many machines, each of up to hundreds of megabytes
    patterns = [*(f"build/{variant}/**" for variant in variants()), "torch-ext/**"]
    commit = commit_at(place)
    package = KernelPackage(commit.downloaded(patterns), function, sha256)
    try:
        package.root  # noqa: B018  (raises)
    except UnsupportedError as fault:
        names = [name.split("/") for name in commit.files()]
        builds = dict.fromkeys(each[1] for each in names if each[0] == "build" and len(each) > 2)
        raise UnsupportedError(
            f"{place} has no build for this machine (builds: {', '.join(builds) or 'none'})", hint=fault.hint
        ) from None
    return package


def submission(op: str, name: str, package: KernelPackage) -> Implementation:
    """The implementation by a package's function, which takes the op's values in order and returns the outputs."""
    return Submission(op, name, lambda _problem, _device: package.load(), (f"{package.function} {package.digest()}",))


def _imported(root: Path, digest: str) -> ModuleType:
    name = f"foreign_{plain_name(root.name)}_{digest[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_of_file(name, root / "__init__.py", is_package=True)
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        del sys.modules[name]
        raise UnsupportedError(f"{root} cannot be imported: {type(fault).__name__}: {fault}") from fault
    return module
