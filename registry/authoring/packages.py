"""Makes the folder of a new package: everything is rendered first, and an existing folder is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Op
from ..errors import RegistryError
from .naming import check_vendor, package_of, split_op
from .rendering import rendered
from .starts import Start, kernel_file, start_of, variant_of


@dataclass(frozen=True)
class NewPackage:
    """A package that was made: its folder, its files in it, and its plugin and op."""

    folder: Path
    files: tuple[str, ...]
    vendor: str
    op: str
    backend: str


def new_plugin(vendor: str, op: Op, backend: str, folder: Path | None = None) -> NewPackage:
    """Makes a package with one implementation of ``op``, by ``backend``, in ``folder`` (``registry-<vendor>``).

    Raises InvalidDefinitionError for a name, UnknownNameError for a backend, RegistryError for an existing folder.
    """
    check_vendor(vendor)
    start = start_of(op, backend)
    module = op.name.rpartition("::")[2]
    known = _known(vendor, op.name, module, backend) | {
        **vars(start),
        "args": ", ".join(f'"{name}"' for name in start.args),
        "description": f"An implementation of {op.name} for kernel-registry.",
        "made": _made(module, backend),
        "told_problem": _told(start),
    }
    files = _shared(known) | {
        f"{known['package']}/{module}.py": rendered(f"implementations/{backend}.py", known),
        "tests/conftest.py" if backend == "triton" else "": rendered("package/conftest.py", known),
    }
    if known["kernel"]:
        files[f"{known['package']}/kernels/__init__.py"] = rendered("package/kernels_init.py", known)
        files[f"{known['package']}/kernels/{known['kernel']}"] = rendered(f"kernels/{module}.{backend}", known)
    return _made_folder(known, files, folder)


def new_op(name: str, folder: Path | None = None) -> NewPackage:
    """Makes a package with the contract of ``vendor::name`` and one implementation of it, by torch.

    Raises InvalidDefinitionError for a name, RegistryError for an existing folder.
    """
    vendor, module = split_op(name)
    known = _known(vendor, name, module, "torch") | {
        "new_op": True,
        "description": f"The op {name} for kernel-registry.",
        "made": _made(module, "torch"),
        "told_problem": "rows=64 cols=256 dtype=float32",
        "shapes": ("{rows: 64, cols: [256, 1000], dtype: float32}", "{rows: 64, cols: 4096, dtype: bfloat16}"),
    }
    files = _shared(known) | {
        f"{known['package']}/ops/__init__.py": rendered("op/ops_init.py", known),
        f"{known['package']}/ops/{module}.py": rendered("op/contract.py", known),
        f"{known['package']}/kernels/__init__.py": rendered("package/kernels_init.py", known),
        f"{known['package']}/kernels/{module}.py": rendered("op/implementation.py", known),
    }
    return _made_folder(known, files, folder)


def _known(vendor: str, op: str, module: str, backend: str) -> dict[str, Any]:
    """The values that all templates share."""
    from .. import __version__

    return {
        "vendor": vendor, "dashed": vendor.replace("_", "-"), "package": package_of(vendor), "op": op,
        "module": module, "backend": backend, "functional": backend == "torch", "new_op": False,
        "kernel": kernel_file(module, backend), "variant": variant_of(backend),
        "version": ".".join(__version__.split(".")[:2]),
    }  # fmt: skip


def _shared(known: Mapping[str, Any]) -> dict[str, str]:
    """The files of every package."""
    package = known["package"]
    return {
        "pyproject.toml": rendered("package/pyproject.toml", known),
        "README.md": rendered("package/README.md", known),
        ".gitignore": rendered("package/gitignore", known),
        ".github/workflows/check.yml": rendered("package/check.yml", known),
        "shapes.yaml": rendered("package/shapes.yaml", known),
        f"{package}/__init__.py": rendered("package/init.py", known),
        f"{package}/py.typed": "",
        f"tests/test_{known['module']}.py": rendered("package/test.py", known),
    }


def _made_folder(known: Mapping[str, Any], files: Mapping[str, str], folder: Path | None) -> NewPackage:
    folder = folder or Path(f"registry-{known['dashed']}")
    try:
        folder.mkdir(parents=False)
    except FileExistsError:
        raise RegistryError(
            f"{folder} exists already", hint="nothing was written; name another one with --folder"
        ) from None
    except FileNotFoundError:
        hint = "make the folder first, or name another one with --folder"
        raise RegistryError(f"{folder.parent}: no such folder", hint=hint) from None
    kept = {name: text for name, text in files.items() if name}
    try:
        for name, text in kept.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # it is ours: it was made above
        raise
    return NewPackage(folder, tuple(sorted(kept)), known["vendor"], known["op"], known["backend"])


def _made(module: str, backend: str) -> str:
    """The name of the class of an implementation, or of the constant that holds a functional one."""
    if backend == "torch":
        return module.upper()
    return f"{backend.capitalize()}{module.title().replace('_', '')}"


def _told(start: Start) -> str:
    """Dimensions for ``registry explain``, from the first entry of the shapes file."""
    pairs = (pair.split(": ") for pair in start.shapes[0].strip("{}").replace("[", "").replace("]", "").split(", "))
    return " ".join(f"{pair[0]}={pair[1]}" for pair in pairs if len(pair) == 2)
