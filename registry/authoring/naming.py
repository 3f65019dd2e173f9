"""The names that a new package may have: those of its plugin, its import package and its op."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib import metadata

from ..discovery.hooks import PROJECT
from ..discovery.plugin import Plugin
from ..errors import InvalidDefinitionError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_MOST = 24
"""Characters of a name: longer ones would need lines of their own in what is generated."""


def check_vendor(vendor: str) -> None:
    """Raises InvalidDefinitionError for a plugin's name that is no identifier, too long, or taken in this process."""
    _check_name("plugin", vendor)
    if vendor == "registry" or vendor.startswith(("registry_", "kernel_registry")):
        raise InvalidDefinitionError(
            f"the plugin's name {vendor!r} begins with registry", hint="leave that out: the package gets it in front"
        )
    for plugin, entry_point in Plugin.each_of(metadata.entry_points(group=PROJECT)):
        if vendor in plugin.vendors:
            raise InvalidDefinitionError(
                f"the plugin's name {vendor!r} is taken by {plugin}, module {entry_point.module}",
                hint="choose another name, or uninstall that plugin first",
            )
    package = package_of(vendor)
    if importlib.util.find_spec(package) is not None:
        raise InvalidDefinitionError(
            f"the import package {package} is there already", hint="choose another name, or uninstall that package"
        )


def split_op(name: str) -> tuple[str, str]:
    """Vendor and own name of ``vendor::name``. Raises InvalidDefinitionError for any other text."""
    vendor, separator, own = name.partition("::")
    if not separator:
        raise InvalidDefinitionError(
            f"the op's name {name!r} has no vendor", hint=f"expected vendor::name, such as acme::{name or 'row_sum'}"
        )
    _check_name("op", own)
    check_vendor(vendor)
    return vendor, own


def package_of(vendor: str) -> str:
    """The import package of a plugin: ``registry_acme``."""
    return f"registry_{vendor}"


def _check_name(kind: str, name: str) -> None:
    if not _NAME.match(name):
        likely = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f"; did you mean {likely}?" if _NAME.match(likely) else ""
        raise InvalidDefinitionError(
            f"the {kind}'s name {name!r} is no identifier",
            hint=f"expected small letters, digits and _, a letter first{hint}",
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise InvalidDefinitionError(f"the {kind}'s name {name!r} is a word of Python", hint="choose another name")
    if len(name) > _MOST:
        raise InvalidDefinitionError(
            f"the {kind}'s name {name!r} has {len(name)} characters", hint=f"expected at most {_MOST}"
        )
