"""The config of a model, by its name in the box or on the hub, or by the path of its config.json."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InvalidArgumentError, ShapesFileError
from ...paths import expanded
from ...untrusted.yaml_document import bounded_text

FOLDER = Path(__file__).with_name("configs")
"""Configs in the box: the keys of public models that problems depend on, one file a model, in folders by maker."""

_TUNED_LIKE = frozenset({"instruct", "it", "chat", "base", "hf", "pt", "meta"})
"""Parts of a name on the hub that change weights, but no shape."""


@cache
def _files() -> Mapping[str, Path]:
    """The models in the box and their files."""
    return {path.stem: path for path in FOLDER.rglob("*.json")}


def names() -> tuple[str, ...]:
    """The models in the box, e.g. ``llama-3.1-8b``."""
    return tuple(sorted(_files()))


def config_of(model: str) -> Mapping[str, Any]:
    """The config of a model: a name in the box, the hub's ``owner/name``, a config.json, or a folder that has one.

    Raises InvalidArgumentError for anything else, with the names that are known.
    """
    path = expanded(model)
    try:
        if path.is_dir():
            path /= "config.json"
        if path.is_file() or path.suffix == ".json":
            return _read(path)
    except OSError:
        pass  # a text that cannot be a path is no name either
    name = in_box(model)
    if name not in names():
        near = difflib.get_close_matches(name, names(), 3, 0.5)
        raise InvalidArgumentError(
            f"model {model!r:.80} is neither a config.json nor a model in the box",
            hint=f"{'near: ' + ', '.join(near) if near else 'the box has: ' + ', '.join(names())};"
            " of any other model give the path of its config.json",
        )
    return _read(_files()[name])


def in_box(model: str) -> str:
    """The name that a model's file in the box has: ``llama-3.1-8b`` of ``meta-llama/Llama-3.1-8B-Instruct``."""
    parts = model.rpartition("/")[2].lower().removesuffix(".json").split("-")
    return "-".join(part for part in parts if part not in _TUNED_LIKE)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(bounded_text(path))
    except OSError as fault:
        raise InvalidArgumentError(f"{path}: {fault.strerror}", hint="expected a model's config.json") from None
    except (ValueError, RecursionError, ShapesFileError) as fault:
        raise InvalidArgumentError(f"{path} is no config.json: {fault}"[:200]) from None
    if not isinstance(data, dict):
        raise InvalidArgumentError(f"{path} holds a {type(data).__name__}", hint="expected a JSON object of keys")
    return data
