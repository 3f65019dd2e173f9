"""Shapes files in the box: ``configs/llm.yaml`` and its like are found from an installed package, too."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve()
_FOLDERS = _HERE.with_name("configs"), _HERE.parents[3] / "configs"
"""Where the files are in a wheel, and in a checkout."""


def found(path: Path) -> Path:
    """The file that ``path`` names: the path itself, or if nothing is there the file in the box of this name.

    The name of a file in the box is its path in a checkout, such as ``configs/llm.yaml``.
    """
    if path.parent != Path("configs") or path.exists():
        return path
    return next((one for folder in _FOLDERS if (one := folder / path.name).is_file()), path)
