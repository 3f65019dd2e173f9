"""What a sandbox sees of the file system: the system, the interpreter, our packages, and its own files; all read-only.

Everything else is not there: no home, no /etc but what the loader needs, no other submission.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_ROOTS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
_CPU_FACTS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
_GPU_FACTS = ("/sys/bus/pci", "/sys/devices", "/sys/module", "/sys/class/drm", "/sys/dev")
_OURS = ("registry", "tuning_db")


def system_mounts(*, is_gpu: bool) -> list[str]:
    """Arguments of bwrap for the system's own files, and what of /sys the CPU, or a GPU's driver, is described by."""
    made = ["--ro-bind", "/usr", "/usr"]
    for name in _ROOTS:
        place = Path("/") / name
        if place.is_symlink():
            made += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            made += ["--ro-bind", str(place), str(place)]
    for name in _ETC:
        made += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path in _GPU_FACTS if is_gpu else _CPU_FACTS:
        made += ["--ro-bind-try", path, path]
    return made


def interpreter_paths() -> list[Path]:
    """Folders and links that this Python consists of, outside of /usr."""
    found = [Path(sys.prefix), Path(sys.exec_prefix), Path(sys.base_prefix), Path(sys.base_exec_prefix)]
    link = Path(sys.executable)
    while link.is_symlink():
        target = link.readlink()
        link = target if target.is_absolute() else link.parent / target
        found.append(link)
    return found


def site_folders() -> list[Path]:
    """Folders of installed distributions outside of the interpreter's: of ``pip install --user`` or ``--target``."""
    own = [Path("/usr"), *interpreter_paths()]
    found = [Path(each) for each in sys.path if each and any(Path(each).glob("*.dist-info"))]
    return [each for each in found if not any(one == each or one in each.parents for one in own)]


def package_paths(names: Iterable[str] = ()) -> list[Path]:
    """Folders or files of our packages, and of others by name, wherever they are imported from."""
    found: list[Path] = []
    for name in dict.fromkeys([*_OURS, *names]):
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations is not None:
            found += map(Path, spec.submodule_search_locations)
        elif spec.origin is not None:
            found.append(Path(spec.origin))
    return found


def read_only(paths: Iterable[Path]) -> list[str]:
    """Arguments of bwrap that show these at their own places; nothing twice, outer folders first."""
    made: list[str] = []
    kept: list[Path] = []
    for path in sorted({_absolute(each) for each in paths}, key=lambda each: (len(each.parts), str(each))):
        if not any(path == other or other in path.parents for other in (Path("/usr"), *kept)):
            kept.append(path)
            made += ["--ro-bind", str(path), str(path)]
    return made


def _absolute(path: Path) -> Path:
    # not resolved: a link has to be found at its own place
    return path if path.is_absolute() else Path.cwd() / path


def gpu_nodes(minor: int | None) -> list[str]:
    """Arguments of bwrap for one GPU's device nodes. ``minor``: its number; None: of all, where it is not known."""
    return [part for node in _nodes(minor) for part in ("--dev-bind", str(node), str(node))]


def _nodes(minor: int | None) -> Iterator[Path]:
    root = Path("/dev")
    wanted: Sequence[Path] = (
        sorted(each for each in root.glob("nvidia[0-9]*") if each.name[6:].isdigit())
        if minor is None
        else [root / f"nvidia{minor}"]
    )
    for node in (*wanted, *(root / name for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))):
        if node.exists():
            yield node
