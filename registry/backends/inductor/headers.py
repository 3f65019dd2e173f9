"""The header of torch's that Inductor precompiles for C++: kept in the cache, and not looked for where code is loaded.

To precompile it takes 6 s of a core. torch keeps it in the folder of temporary files, which a run's children have for
themselves. To look for it takes the preprocessor half a second, also where a kernel is compiled already.

Wraps functions of the module ``artifact``: its text is part of fingerprints, so that an edit there makes winners stale.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from ...paths import INDUCTOR_CACHE
from . import artifact as inductor_artifact

HEADERS = "precompiled_headers"
"""The folder of Inductor's cache that holds the header."""

_own_caches, _load_file = inductor_artifact.own_caches, inductor_artifact.load_file


@contextlib.contextmanager
def own_caches() -> Iterator[None]:
    """As ``artifact.own_caches``, for the precompiled header, too. The caller must hold ``PATCHING``."""
    with _own_caches():
        folder = Path(os.environ[INDUCTOR_CACHE], HEADERS)
        with _replaced(_HEADER_DIR=str(folder), _HEADER_LOCK_DIR=str(folder / "locks")):
            yield


def load_file(file: Path) -> inductor_artifact.Compiled:
    """As ``artifact.load_file``, without a look for the header."""
    with inductor_artifact.PATCHING, _replaced(_precompile_header=lambda *_, **__: None):
        return _load_file(file)


@contextlib.contextmanager
def _replaced(**private: object) -> Iterator[None]:
    """A context in which private names of the module that caches Inductor's code are others, where torch has them."""
    module = importlib.import_module("torch._inductor.codecache")
    before = {name: getattr(module, name) for name in private if hasattr(module, name)}
    vars(module).update({name: private[name] for name in before})
    try:
        yield
    finally:
        vars(module).update(before)


def install() -> None:
    """Have the module ``artifact`` use these functions."""
    vars(inductor_artifact).update(own_caches=own_caches, load_file=load_file)
