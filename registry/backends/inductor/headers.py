"""Files that Inductor shares beside its cache: no other user can write to those that code of ours is compiled with.

torch keeps the headers that it precompiles for C++, and answers about padding, in a folder of the temporary directory
whatever ``TORCHINDUCTOR_CACHE_DIR`` says. Whoever makes that folder first decides what is compiled with them. And to
look for a header takes the preprocessor half a second, so compiled code is loaded without a look.

Wraps functions of the module ``artifact``, whose text is part of fingerprints: an edit there makes winners stale.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...artifact import Artifact, Target
from ...paths import cache_folder
from . import artifact as inductor_artifact
from .implementation import InductorImplementation

_LOOK, _FOLDER, _LOCKS = "_precompile_header", "_HEADER_DIR", "_HEADER_LOCK_DIR"
"""Names of ``torch._inductor.codecache``: a function with a cache, which reads the two folders when it is called."""
_SWITCH = "cpp_cache_precompile_headers"
_SHARES = "IS_CACHING_MODULE_ENABLED"
"""The name of a function that says whether answers of earlier processes are read, as pickles; few users turn it on."""

_load_file = inductor_artifact.load_file
_own_caches = inductor_artifact.own_caches
_compiled = InductorImplementation._compiled


def load_file(file: Path) -> inductor_artifact.Compiled:
    """Code loaded by ``artifact.load_file``, without a look for the header that Inductor precompiles."""
    names = _names("torch._inductor.codecache")
    replaced = {_LOOK: _no_look} if _LOOK in names else {}
    with inductor_artifact.PATCHING, _replaced(names, replaced):
        return _load_file(file)


@contextlib.contextmanager
def own_caches() -> Iterator[None]:
    """The context of ``artifact.own_caches``, in which precompiled headers and answers are this package's, too.

    The caller must hold ``PATCHING``.
    """
    with _own_caches(), _own_headers(), _no_answers():
        yield


def compiled(implementation: InductorImplementation, artifact: Artifact, target: Target) -> Callable[..., Any]:
    """The function of ``InductorImplementation._compiled``; of code that is no file, one that compiles in own folders.

    Such code is compiled when it is called, at the first call or a later one: other calls hold no lock.
    """
    function = _compiled(implementation, artifact, target)
    traced = getattr(function, "_torchdynamo_orig_callable", None)
    if traced is None:
        return function
    made: Callable[..., Any] = torch.compile(traced, fullgraph=True, dynamic=False, backend=_in_own_folders)
    return made


def _in_own_folders(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend of torch.compile: Inductor in this package's folders."""
    dynamo = importlib.import_module("torch._dynamo")
    with inductor_artifact.PATCHING, inductor_artifact.own_caches():
        code: Callable[..., Any] = dynamo.lookup_backend("inductor")(graph, inputs)
    return code


def install() -> None:
    """Have the module ``artifact`` and its implementations use these functions."""
    vars(inductor_artifact).update(load_file=load_file, own_caches=own_caches)
    InductorImplementation._compiled = compiled  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def _own_headers() -> Iterator[None]:
    """A context in which precompiled headers are kept in the user's folder, or not used by a torch of other names."""
    names = _names("torch._inductor.codecache")
    look = names.get(_LOOK)
    if look is _no_look:
        yield
        return
    uncached = getattr(look, "__wrapped__", None)
    if uncached is None or not {_FOLDER, _LOCKS} <= names.keys():
        with _switched_off():
            yield
        return
    folder = cache_folder("torchinductor", "precompiled_headers")
    own = {_LOOK: _own_look(uncached, folder), _FOLDER: str(folder), _LOCKS: str(folder / "locks")}
    with _replaced(names, own):
        yield


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    config = importlib.import_module("torch._inductor.config")
    with config.patch({_SWITCH: False}) if hasattr(config, _SWITCH) else contextlib.nullcontext():
        yield


@functools.cache
def _own_look(uncached: Callable[..., str], _folder: Path) -> Callable[..., str]:
    """torch's function with a cache of its own: that of the process may hold headers of the shared folder."""
    return functools.cache(uncached)


@contextlib.contextmanager
def _no_answers() -> Iterator[None]:
    """A context in which no answers of earlier processes are read, and none written."""
    try:
        names = _names("torch._inductor.runtime.caching.config")
    except ImportError:  # of an older torch
        yield
        return
    with _replaced(names, {_SHARES: lambda: False} if _SHARES in names else {}):
        yield


def _no_look(*_: object, **__: object) -> None:
    return None


def _names(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(module))


@contextlib.contextmanager
def _replaced(names: dict[str, Any], others: Mapping[str, object]) -> Iterator[None]:
    before = {name: names[name] for name in others}
    names.update(others)
    try:
        yield
    finally:
        names.update(before)
