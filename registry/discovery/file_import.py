"""Modules of files that change while a process runs, such as plugin files and submissions."""

from __future__ import annotations

from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType


class CurrentFileLoader(SourceFileLoader):
    """Imports a file as it is now: other loaders take the bytecode of a file of the same size and second."""

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text of the file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def spec_of_file(name: str, file: Path, *, is_package: bool = False) -> ModuleSpec:
    """The spec of a module ``name`` that is made of a file, whatever was imported from that file before."""
    folders = [str(file.parent)] if is_package else None
    spec = spec_from_file_location(
        name, file, loader=CurrentFileLoader(name, str(file)), submodule_search_locations=folders
    )
    assert spec is not None, "a loader was given"
    return spec
