"""Where this package keeps files: a per-user cache that nobody else can write to."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import uuid
from pathlib import Path

import platformdirs

from .errors import CacheError


def cache_folder(*parts: str) -> Path:
    """A folder under the user's cache (``KERNEL_REGISTRY_CACHE`` moves it), made with mode 0700.

    What is in it gets loaded and run, so a folder that someone else owns or can write to is refused. The root may be
    a link to a folder that is neither; nothing below it may be a link.
    """
    folder = Path(os.environ.get("KERNEL_REGISTRY_CACHE") or platformdirs.user_cache_path("kernel-registry")).resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _private(folder)
        for part in parts:
            folder = folder / part
            _private(folder)
    except OSError as fault:
        raise CacheError(f"{folder} cannot be made: {fault.strerror}", hint=_ELSEWHERE) from fault
    return folder


def check_room() -> None:
    """Raise CacheError where compilers cannot write: the cache of compiled code, or the folder of temporary files.

    A few MB are really written, which a quota may refuse where the file system has room.
    """
    for folder, elsewhere in ((cache_folder(), _ELSEWHERE), (Path(tempfile.gettempdir()), "free some, or set TMPDIR")):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_ROOM_BYTES))
        except OSError as fault:
            raise CacheError(
                f"{folder} cannot be written to: {fault.strerror}; compilers need {_ROOM_BYTES >> 20} MB there",
                hint=elsewhere,
            ) from fault


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: no reader sees half of it, whoever else writes it. Raises OSError.

    It keeps the mode of the file that it replaces.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        part.write_bytes(content)
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def compiler_caches() -> dict[str, str]:
    """Variables that have Inductor and Triton keep compiled code in the user's cache; none where a place was chosen.

    torch's own choice is a folder in the temporary directory that belongs to whoever made it first. It writes that
    into the environment when it is first used. Inductor finds kernels by where Triton's folder was when it saved them,
    so that the two go together.
    """
    given = os.environ.get(_INDUCTOR_CACHE, "")
    own = str(cache_folder("torchinductor"))
    chosen = given not in {"", own} and not Path(given).name.startswith("torchinductor_")
    return {} if chosen else {_INDUCTOR_CACHE: own, "TRITON_CACHE_DIR": str(cache_folder("triton"))}


_ROOM_BYTES = 4 << 20
_ELSEWHERE = "set KERNEL_REGISTRY_CACHE to a folder of your own"
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{folder} is not a folder", hint="remove it, or set KERNEL_REGISTRY_CACHE")
    if not hasattr(os, "getuid"):
        return  # Windows, where a user's folders are nobody else's to write to
    if found.st_uid != os.getuid():
        raise CacheError(
            f"{folder} belongs to user {found.st_uid}, not to you ({os.getuid()})",
            hint="compiled kernels are loaded from it; set KERNEL_REGISTRY_CACHE to a folder of your own",
        )
    if found.st_mode & 0o022:
        raise CacheError(
            f"{folder} can be written to by others (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"compiled kernels are loaded from it; see that they are yours, then: chmod go-w {folder}",
        )
