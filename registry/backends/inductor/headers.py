"""Compiled code is loaded without a look for the header of torch's that Inductor precompiles for C++.

To look for it takes the preprocessor half a second, also where a kernel is compiled already.

Wraps a function of the module ``artifact``, whose text is part of fingerprints: an edit there makes winners stale.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from . import artifact as inductor_artifact

_LOOK = "_precompile_header"
_load_file = inductor_artifact.load_file


def load_file(file: Path) -> inductor_artifact.Compiled:
    """Code loaded by ``artifact.load_file``, without a look for the header that Inductor precompiles."""
    names = vars(importlib.import_module("torch._inductor.codecache"))
    with inductor_artifact.PATCHING:
        look = names.get(_LOOK)
        if look is None:
            return _load_file(file)
        names[_LOOK] = lambda *_, **__: None
        try:
            return _load_file(file)
        finally:
            names[_LOOK] = look


def install() -> None:
    """Have the module ``artifact`` use this function."""
    vars(inductor_artifact).update(load_file=load_file)
