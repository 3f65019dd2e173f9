"""The files of a compiled artifact in the cache, as content that another node can install in its own cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ...artifact import Artifact
from ...paths import cache_folder, write_whole

SHARED = ("cpp", "cuda", "triton")
"""Folders of the cache whose files have names that follow from their source: elsewhere they are found by them."""

INSTALLED = (*SHARED, "inductor", "torchinductor")
"""Folders into which files of other nodes are installed; the last two hold torch.compile's artifacts and libraries.

The names of these do not tell all that they depend on: they go to nodes alone whose ``conditions`` are equal.
"""

_GROUP = "__grp__"
"""Beginning of the name of Triton's list of the files of a kernel, which holds their absolute paths."""


def files_of(artifact: Artifact) -> dict[str, bytes]:
    """Content of the artifact's files by their paths within the cache; none for one that is not in a shared folder.

    Triton keeps a kernel in a folder of its own, whose files go together.
    """
    if not artifact.path:
        return {}
    root, path = cache_folder(), Path(artifact.path).resolve()
    if not path.is_relative_to(root) or path.relative_to(root).parts[0] not in SHARED:
        return {}
    triton = path.relative_to(root).parts[0] == "triton"
    found = [one for one in path.parent.iterdir() if one.is_file()] if triton else [path]
    return {one.relative_to(root).as_posix(): one.read_bytes() for one in sorted(found)}


def digest_of(content: bytes) -> str:
    """SHA-256 of content, by which nodes name it."""
    return hashlib.sha256(content).hexdigest()


def missing(paths: Mapping[str, str]) -> dict[str, str]:
    """Files of ``paths`` (path -> digest) that this node's cache lacks. Paths outside of the cache are left out."""
    root = cache_folder()
    return {path: digest for path, digest in paths.items() if _is_safe(path) and not (root / path).exists()}


def install(path: str, content: bytes, digest: str) -> bool:
    """Write a file into this node's cache; False, with nothing written, if the content is not what it was.

    A list of Triton's gets the paths of this node.
    """
    if digest_of(content) != digest or not _is_safe(path):
        return False
    folder, *rest = Path(path).parent.parts
    target = cache_folder(folder, *rest) / Path(path).name
    write_whole(target, _located(content, target.parent) if target.name.startswith(_GROUP) else content)
    return True


def _is_safe(path: str) -> bool:
    parts = Path(path).parts
    return len(parts) > 1 and parts[0] in INSTALLED and ".." not in parts and not Path(path).is_absolute()


def _located(content: bytes, folder: Path) -> bytes:
    group = json.loads(content)
    group["child_paths"] = {name: str(folder / name) for name in group["child_paths"]}
    return json.dumps(group).encode()
