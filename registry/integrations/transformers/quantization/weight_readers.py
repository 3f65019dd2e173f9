"""Layers whose weight the code of the module around them reads itself, as Mamba's reads that of ``dt_proj``.

A packed layer computes what its forward did, and has no dense weight to read.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import torch

from ..swapping import own_class

_READ = re.compile(r"(?<!isinstance\()\bself\.(\w+)\.weight\b(?!\.(?:dtype|device|shape)\b)(?!\s*=[^=])")
"""A weight that is neither assigned nor asked for what packed ones tell, too."""
_INITIALISED = re.compile(r"\binit\.\w+\(.*")


def weight_readers(model: torch.nn.Module) -> dict[str, str]:
    """Names of layers whose weight is read by the module that holds them, and that module's class by name."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        own: Any = own_class(module)
        held = _read_by(own) & module._modules.keys()
        found.update({f"{name}.{child}".lstrip("."): own.__name__ for child in held})
    return found


@cache
def _read_by(own: Any) -> frozenset[str]:
    """The attributes of ``self`` whose weight a class's code reads; none of a class whose source is not at hand."""
    names: set[str] = set()
    for kind in own.__mro__:
        if not issubclass(kind, torch.nn.Module) or kind.__module__.startswith("torch."):
            continue
        try:
            lines = inspect.getsource(kind).splitlines()
        except (OSError, TypeError):
            continue
        names |= {found for line in lines for found in _READ.findall(_INITIALISED.sub("", line))}
    return frozenset(names)
