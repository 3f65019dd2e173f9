"""Small models of transformers that are marked, their kernelize, and counts of the ops that they call."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry.api import dispatcher
from registry.tuner.shapes.shapes import read_shapes

from ..transformers.tiny_models import tiny
from .marks import put_marks


def marked(patch: pytest.MonkeyPatch, family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A small model whose layers are marked."""
    file = sys.modules[type(tiny(family, dtype, **changes)).__module__]
    put_marks(patch, file, importlib.import_module("transformers.activations"))
    return tiny(family, dtype, **changes)


def kernelized(model: Any, mode: str, mapping: Any = None) -> Any:
    """The model after kernelize with a mapping, the registry's when none is given, and no other one.

    ``mode`` are names of ``kernels.Mode``.
    """
    import kernels

    from registry.integrations.hf_kernels import kernel_mapping

    first, *more = (kernels.Mode[name] for name in mode.split())
    for one in more:
        first |= one
    with kernels.use_kernel_mapping(kernel_mapping() if mapping is None else mapping, inherit_mapping=False):
        return kernels.kernelize(model, mode=first, device=next(model.parameters()).device)


def called(run: Callable[[], object], folder: Path) -> Counter[str]:
    """How often ``run`` calls each op."""
    path = folder / f"calls{len(list(folder.iterdir()))}.yaml"
    with registry.record(path):
        run()
    counts: Counter[str] = Counter()
    for problem, count in read_shapes(path, dispatcher.catalog).counts.items():
        counts[problem.op] += count
    return counts
