"""Argument types of the benchmarks: folders for results, made before anything is measured, and lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def output_folder(text: str) -> Path:
    """A folder to write to, made if it is not there. Raises ArgumentTypeError where that is not possible."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"cannot make the folder {text!r}: {fault.strerror}") from None
    return path


def folder(text: str) -> Path:
    """A folder that is there. Raises ArgumentTypeError for another path."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return path


def output_file(text: str) -> Path:
    """A file to write, whose folder is made if it is not there. Raises ArgumentTypeError where it cannot be one."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, expected a file to write")
    output_folder(str(path.parent))
    return path


def positive(text: str) -> int:
    """A whole number from 1 on. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """A type that takes these names alone."""

    def name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return name


class Listed(argparse.Action):
    """An option with one value or several, separated by spaces or commas, each of the option's ``type``."""

    def __init__(self, option_strings: Sequence[str], dest: str, **given: Any) -> None:
        self._item: Callable[[str], Any] = given.pop("type")
        super().__init__(option_strings, dest, nargs="+", **given)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object) -> None:
        """Set the option to the list."""
        try:
            found = [self._item(each) for text in values for each in text.split(",") if each]
        except argparse.ArgumentTypeError as fault:
            parser.error(f"argument {'/'.join(self.option_strings)}: {fault}")
        setattr(namespace, self.dest, found)
