"""Where this package keeps files: a per-user cache that nobody else can write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from .errors import RegistryError


def cache_folder(*parts: str) -> Path:
    """A folder under the user's cache (``KERNEL_REGISTRY_CACHE`` moves it), made with mode 0700.

    What is in it gets loaded and run, so a folder that someone else owns or can write to is refused. The root may be
    a link to a folder that is neither; nothing below it may be a link.
    """
    root = Path(os.environ.get("KERNEL_REGISTRY_CACHE") or platformdirs.user_cache_path("kernel-registry")).resolve()
    root.parent.mkdir(parents=True, exist_ok=True)
    folder = root
    _private(folder)
    for part in parts:
        folder = folder / part
        _private(folder)
    return folder


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


_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise RegistryError(f"{folder} is not a folder", hint="remove it, or set KERNEL_REGISTRY_CACHE")
    if found.st_uid != os.getuid():
        raise RegistryError(
            f"{folder} belongs to user {found.st_uid}, not to you ({os.getuid()})",
            hint="compiled kernels are loaded from it; set KERNEL_REGISTRY_CACHE to a folder of your own",
        )
    if found.st_mode & 0o022:
        raise RegistryError(
            f"{folder} can be written to by others (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"compiled kernels are loaded from it; see that they are yours, then: chmod go-w {folder}",
        )
