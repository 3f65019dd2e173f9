"""The folders of this package: a cache of the user's that no other user can write to."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from .errors import CacheError
from .untrusted.file_kinds import why_no_file


def cache_folder(*parts: str) -> Path:
    """A folder under the user's cache (``KERNEL_REGISTRY_CACHE`` moves it), made with mode 0700.

    Its files are loaded and run, so a folder that another user owns or can write to is refused. The root may be a link
    to a folder that passes this check; nothing below it may be a link.
    """
    folder = resolved(os.environ.get("KERNEL_REGISTRY_CACHE") or _default_cache())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _private(folder)
        for part in parts:
            folder = folder / part
            _private(folder)
    except OSError as fault:
        raise CacheError(f"{folder} cannot be made: {fault.strerror}", hint=_ELSEWHERE) from fault
    return folder


def expanded(path: str | Path) -> Path:
    """``path`` with a leading ``~`` as the home folder it stands for.

    A ``~`` of a user that is not known, or who has no home folder, stays as it is: pathlib raises RuntimeError for it.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def resolved(path: str | Path) -> Path:
    """The absolute path, expanded, with its links followed as far as they lead.

    Links in a circle stay as they are, for which pathlib raises RuntimeError: to open the path tells of them.
    """
    return Path(os.path.realpath(expanded(path)))


def check_room() -> None:
    """Raise CacheError unless the cache of compiled code and the folder of temporary files can be written to.

    A few MB are written, since a quota may refuse them although the file system has room.
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
    """Write a file completely or not at all: no reader sees half of it, also with several writers. Raises OSError.

    A file that is replaced passes on its mode.
    """
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A path beside ``path`` where the block makes a file, which becomes ``path`` when the block ends without a fault.

    A file that is replaced passes on its mode; a device, a pipe or a socket is not replaced: OSError. Without
    ``replace`` a file that is there stays as it is, also one that came during the block: FileExistsError.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield part
        if not replace:
            _place_new(part, path)
            return
        if path.exists():
            if why := why_no_file(path):
                raise OSError(errno.EINVAL, why, str(path))
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def compiler_caches() -> dict[str, str]:
    """Environment variables that make Inductor and Triton cache in the user's folder; none if the user set a folder.

    torch's default is a folder in the temporary directory that belongs to the user who made it first; torch writes it
    into the environment at its first use. Inductor stores the place of Triton's folder, so both are set together.
    """
    given = os.environ.get(_INDUCTOR_CACHE, "")
    own = str(cache_folder("torchinductor"))
    chosen = given not in {"", own} and not Path(given).name.startswith("torchinductor_")
    return {} if chosen else {_INDUCTOR_CACHE: own, "TRITON_CACHE_DIR": str(cache_folder("triton"))}


_ROOM_BYTES = 4 << 20
_ELSEWHERE = "set KERNEL_REGISTRY_CACHE to a folder of your own"
_NO_HOME = "set KERNEL_REGISTRY_CACHE to a folder of your own, or HOME"
_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def _default_cache() -> Path:
    try:
        folder = platformdirs.user_cache_path("kernel-registry")
    except RuntimeError:  # a user without a home folder, as a container's user may be
        folder = Path("~")
    if folder.parts[:1] == ("~",):  # older releases of platformdirs leave it so
        raise CacheError("there is no folder for compiled kernels: this user has no home folder", hint=_NO_HOME)
    return folder


def _place_new(part: Path, path: Path) -> None:
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        part.replace(path)


def _private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{folder} is not a folder", hint="remove it, or set KERNEL_REGISTRY_CACHE")
    if not hasattr(os, "getuid"):
        return  # Windows: other users cannot write to a user's folders
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
