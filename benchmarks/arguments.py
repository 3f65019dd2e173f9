"""Argument types of the benchmarks: a folder for results is made before anything is measured."""

from __future__ import annotations

import argparse
from pathlib import Path


def output_folder(text: str) -> Path:
    """A folder to write to, made if it is not there. Raises ArgumentTypeError where that is not possible."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"cannot make the folder {text!r}: {fault.strerror}") from None
    return path


def output_file(text: str) -> Path:
    """A file to write, whose folder is made if it is not there. Raises ArgumentTypeError where it cannot be one."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, expected a file to write")
    output_folder(str(path.parent))
    return path
