"""Guarded import of plugins: their hooks, and their faults as text."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from ..author_code import at, author_frame, shown
from ..contract import Op
from ..errors import InvalidDefinitionError, PluginError, RegistryError
from ..implementation import Implementation
from ..untrusted.file_kinds import why_no_file
from .file_import import spec_of_file
from .hooks import API_VERSION
from .plugin import DISTRIBUTION, Hook, Plugin

GUARDED = (Exception, SystemExit)
"""Exceptions of a plugin's code that do not end the host; KeyboardInterrupt is none of them."""


def attach(plugin: Plugin, load: Callable[[], object], manager: pluggy.PluginManager, *, api_optional: bool) -> None:
    """Import a plugin by ``load`` and register it with pluggy; after an exception it is not registered."""
    started = time.perf_counter()
    try:
        module = load()
        plugin.api_version = _api_version(module, optional=api_optional)
        try:
            manager.register(module, plugin.name)
            plugin.hooks = _hooks(manager, module)
        except BaseException as fault:
            if manager.has_plugin(plugin.name):
                manager.unregister(name=plugin.name)
            if isinstance(fault, pluggy.PluginValidationError):
                odd = next(filter(None, (_oddity(name, hook) for name, hook in _marked(manager, module))), "")
                raise InvalidDefinitionError(f"{' '.join(str(fault).split())}{odd and f'; {odd}'}") from fault
            raise
    finally:
        plugin.load_ms = (time.perf_counter() - started) * 1e3


def called(hook: Hook, what: str) -> tuple[Any, ...]:
    """The items that a hook returns. Every fault in the hook is an InvalidDefinitionError that begins with ``what``."""
    try:
        offered = hook()
        if isinstance(offered, Op | Implementation):
            return (offered,)
        if not isinstance(offered, Iterable) or isinstance(offered, str | Mapping):
            raise InvalidDefinitionError(f"the hook returned {offered!r:.80}, expected a list{at(hook)}")
        return tuple(offered)
    except InvalidDefinitionError as fault:
        raise InvalidDefinitionError(f"{what}: {fault.message}{_place(fault)}", hint=fault.hint) from fault
    except GUARDED as fault:
        raise InvalidDefinitionError(f"{what}: {describe(fault)}") from fault


@contextmanager
def at_hook(hook: Hook) -> Iterator[None]:
    """A context whose InvalidDefinitionErrors end with file and line of a hook, whose result is refused in it."""
    try:
        yield
    except InvalidDefinitionError as fault:
        raise InvalidDefinitionError(f"{fault.message}{at(hook)}", hint=fault.hint) from fault


LACKS = "it needs"
"""The start of the fault of a plugin that lacks a package. Doctor reports it as absent: it may not exist here."""


def missing_package(fault: BaseException | None) -> str:
    """The missing package for which an import failed; "" for any other fault."""
    if not isinstance(fault, ModuleNotFoundError) or not fault.name:
        return ""
    package = fault.name.partition(".")[0]
    try:
        return "" if importlib.util.find_spec(package) else package
    except ImportError:
        return package


def describe(fault: BaseException) -> str:
    """An exception in one line: its type, its text with its hint, and file and line of the author's innermost frame.

    Without a frame of the author's it is the innermost of all.
    """
    text = " ".join(str(fault).split())
    if isinstance(fault, RegistryError):
        text = _in_a_row(fault)
    named = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    return named if isinstance(fault, SyntaxError) else f"{named}{_place(fault) or _innermost(fault)}"


def told(fault: BaseException) -> str:
    """An exception of a plugin in one line: ``describe``, without the type of this package's own errors."""
    return f"{_in_a_row(fault)}{_place(fault)}" if isinstance(fault, RegistryError) else describe(fault)


def _in_a_row(fault: RegistryError) -> str:
    return "; ".join(" ".join(text.split()) for text in (fault.message, fault.hint) if text)


def _place(fault: BaseException) -> str:
    """`` (at /plugins/kernels.py:12)``: the author's line that raised; "" if there is none, or the text names it."""
    frame = author_frame(fault)
    if frame is None or shown(frame.filename, frame.lineno or 0) in str(fault):
        return ""
    return f" (at {frame.filename}:{frame.lineno})"


def _innermost(fault: BaseException) -> str:
    if author_frame(fault) is not None:
        return ""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
    return f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""


def file_module(file: Path) -> str:
    """The module name under which a plugin file is imported, equal in every process."""
    return f"registry_file_{file.stem}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}"


def import_file(file: Path) -> ModuleType:
    """A file imported as the module ``file_module`` in ``sys.modules``, where its source can be fingerprinted.

    Raises PluginError when the file is missing, is no Python, or raises.
    """
    if why := why_no_file(file):
        raise PluginError(why)
    if file.suffix != ".py":
        raise PluginError("not a .py file")
    name = file_module(file)
    spec = spec_of_file(name, file)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except GUARDED as fault:
        del sys.modules[name]
        place = f"line {fault.lineno}: " if isinstance(fault, SyntaxError) else ""
        raise PluginError(f"{place}{describe(fault)}") from fault
    return module


def _api_version(module: object, *, optional: bool) -> int | None:
    given = getattr(module, "KERNEL_REGISTRY_API", None)
    if given is None and optional:
        return None
    if given is None:
        raise InvalidDefinitionError(
            f"it does not say which plugin contract it was written for: write KERNEL_REGISTRY_API = {API_VERSION}"
        )
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidDefinitionError(f"KERNEL_REGISTRY_API is {given!r}, expected the integer {API_VERSION}")
    if given != API_VERSION:
        upgrade = DISTRIBUTION if given > API_VERSION else "the plugin"
        raise InvalidDefinitionError(
            f"written for version {given} of the plugin contract, but this {DISTRIBUTION} has version {API_VERSION}: "
            f"upgrade {upgrade}"
        )
    return given


def _hooks(manager: pluggy.PluginManager, module: object) -> Mapping[str, tuple[Hook, ...]]:
    found: dict[str, tuple[Hook, ...]] = {}
    for caller in manager.get_hookcallers(module) or []:
        own = [hook for hook in caller.get_hookimpls() if hook.plugin is module]
        if odd := next(filter(None, (_oddity(caller.name, hook) for hook in own)), ""):
            raise InvalidDefinitionError(odd)
        for hook in own:
            _refuse_name_of_submodule(module, hook.function)
        found[caller.name] = tuple(hook.function for hook in own)
    return found


def _oddity(name: str, hook: pluggy.HookImpl) -> str:
    """Why a hook function is refused, with its line: it takes arguments, or wraps others; "" if it is not."""
    if hook.argnames:
        return f"its hook {name} takes ({', '.join(hook.argnames)}); a hook takes no arguments{at(hook.function)}"
    if hook.wrapper or hook.hookwrapper:
        return f"its hook {name} is a wrapper; mark hooks with registry.implements{at(hook.function)}"
    return ""


def _marked(manager: pluggy.PluginManager, module: object) -> Iterator[tuple[str, pluggy.HookImpl]]:
    """The hook functions of a module that pluggy refuses, each with the hook's name."""
    for name in dir(module):
        options = manager.parse_hookimpl_opts(module, name)
        if options is not None:
            yield options.get("specname") or name, pluggy.HookImpl(module, name, getattr(module, name), options)


def _refuse_name_of_submodule(module: Any, hook: Hook) -> None:
    """Raise InvalidDefinitionError if a submodule has the name of the hook function, which its import would replace."""
    name = getattr(hook, "__name__", "")
    if name and hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None:
        raise InvalidDefinitionError(
            f"its hook {name}() has the name of its submodule {module.__name__}.{name}, which takes its place when it"
            f" is imported{at(hook)}",
            hint=f"rename the function, e.g. {name}_implementations",
        )
