"""Guarded import of plugins: their hooks, and their faults as text."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from ..contract import Op
from ..errors import InvalidDefinitionError, PluginError
from ..implementation import Implementation
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
                raise InvalidDefinitionError(" ".join(str(fault).split())) from fault
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
            raise InvalidDefinitionError(f"the hook returned {offered!r}, expected a list")
        return tuple(offered)
    except InvalidDefinitionError as fault:
        raise InvalidDefinitionError(f"{what}: {fault.message}", hint=fault.hint) from fault
    except GUARDED as fault:
        raise InvalidDefinitionError(f"{what}: {describe(fault)}") from fault


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
    """An exception in one line: its type, its text, and file and line of the innermost frame."""
    text = " ".join(str(fault).split())
    shown = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    if isinstance(fault, SyntaxError):
        return shown
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
    return f"{shown} (at {own[-1].filename}:{own[-1].lineno})" if own else shown


def file_module(file: Path) -> str:
    """The module name under which a plugin file is imported, equal in every process."""
    return f"registry_file_{file.stem}_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}"


def import_file(file: Path) -> ModuleType:
    """A file imported as the module ``file_module`` in ``sys.modules``, where its source can be fingerprinted.

    Raises PluginError when the file is missing, is no Python, or raises.
    """
    if not file.is_file():
        raise PluginError("no such file")
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
        for hook in own:
            if hook.argnames:
                shown = ", ".join(hook.argnames)
                raise InvalidDefinitionError(f"its hook {caller.name} takes ({shown}); a hook takes no arguments")
            if hook.wrapper or hook.hookwrapper:
                raise InvalidDefinitionError(
                    f"its hook {caller.name} is a wrapper; mark hooks with registry.implements"
                )
            _refuse_name_of_submodule(module, getattr(hook.function, "__name__", ""))
        found[caller.name] = tuple(hook.function for hook in own)
    return found


def _refuse_name_of_submodule(module: Any, name: str) -> None:
    """Raise InvalidDefinitionError if a submodule has the name of the hook function, which its import would replace."""
    if name and hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None:
        raise InvalidDefinitionError(
            f"its hook {name}() has the name of its submodule {module.__name__}.{name}, which takes its place when it"
            " is imported",
            hint=f"rename the function, e.g. {name}_implementations",
        )
