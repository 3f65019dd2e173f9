"""The plugin that a user names: a file, an installed plugin, its package, its distribution, or the folder of that."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ..discovery.catalog import Catalog
from ..discovery.plugin import PluginReport
from ..errors import RegistryError, UnknownNameError

_MANIFEST = "pyproject.toml"


def is_file(target: str) -> bool:
    """True if ``target`` names a Python file rather than an installed plugin."""
    return target.endswith(".py")


def distribution_in(folder: Path) -> str:
    """The name of the distribution that a folder's pyproject.toml describes. Raises RegistryError without one."""
    try:
        name = tomllib.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["project"]["name"]
    except OSError:
        raise RegistryError(f"{folder}: no {_MANIFEST} in it", hint="expected a package, or a .py file") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, UnicodeDecodeError) as fault:
        raise RegistryError(f"{folder / _MANIFEST}: it names no project ({type(fault).__name__})") from None
    return str(name)


def catalog_with_plugin(target: str) -> Catalog:
    """A catalog with the plugin that ``target`` names, whose hooks have not been called. Raises PluginError."""
    catalog = Catalog()
    if is_file(target):
        catalog.load_file(target)
    return catalog


def opened(target: str) -> tuple[Catalog, PluginReport]:
    """A catalog with the plugin that ``target`` names, and the plugin's report.

    Raises PluginError for a file that cannot be loaded, UnknownNameError for a plugin that is not installed.
    """
    catalog = catalog_with_plugin(target)
    if is_file(target):
        return catalog, catalog.file_plugin(target)
    wanted = _plain(distribution_in(Path(target)) if Path(target).is_dir() else target)
    known = {each.name: each for each in catalog.plugins()}
    for name, report in known.items():
        if wanted in {_plain(name), _plain(f"registry_{name}"), _plain(report.distribution)} and _is_sole(
            report, known, wanted
        ):
            return catalog, report
    if Path(target).is_dir():
        raise RegistryError(f"{target}: {wanted} is not installed", hint=f"pip install -e {target}")
    raise UnknownNameError("plugin", target, known)


def _is_sole(report: PluginReport, known: dict[str, PluginReport], wanted: str) -> bool:
    """False if ``wanted`` names a distribution of several plugins, so that the name does not tell which is meant."""
    others = [each for each in known.values() if _plain(each.distribution) == wanted]
    return len(others) <= 1 or wanted != _plain(report.distribution)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
