"""Humming's compiler and launcher: a kernel is found by the keywords of its layer and its tile, in the library's cache.

The library asks the current GPU for its properties, also to compile.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from registry import CompileError

_DENSE = {"gemm_type": "dense"}
_NO_BUILD = "HUMMING_DISABLE_PARALLEL_BUILD"
_MOST_ROWS = 8128
_STEPS = ((1024, 8), (2048, 16), (4096, 32), (_MOST_ROWS, 64))
_mutex = threading.RLock()


def sampled(m: int) -> int:
    """The rows for which the library's heuristics are asked in place of m: it has no finer steps."""
    if m <= 8:
        return 1 << (max(m, 1) - 1).bit_length()
    m = min(m, _MOST_ROWS)
    step = next(step for most, step in _STEPS if m <= most)
    return -(-m // step) * step


def prepared(spec: Mapping[str, Any], index: int) -> torch.Tensor:
    """The kernel of a variant, compiled if it is not in the library's cache: what the launcher takes, four numbers.

    ``spec`` has ``layer``, and ``tile``, or ``rows`` for which the library's heuristics choose one. Raises
    CompileError.
    """
    with _mutex, torch.cuda.device(index):
        try:
            kernel = _module("humming.kernel.humming").HummingKernel
            tile = _chosen(spec, index) if "rows" in spec else _rastered(spec)
            found: torch.Tensor = kernel.prepare_kernels(dict(spec["layer"]), dict(_DENSE), tile, index)
        except torch.OutOfMemoryError:
            raise
        except Exception as fault:  # assertions, and whatever a compiler's process says: it has no such kernel
            lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
            raise CompileError(f"Humming: {type(fault).__name__}: {' / '.join(lines[:3])}") from fault
    return found


def launcher() -> Callable[..., None]:
    """The operator that launches a kernel into given outputs."""
    with _mutex:
        _module("humming.ops.utils").init_humming_launcher()
    launch: Callable[..., None] = torch.ops.humming.launch_kernel.out
    return launch


def _chosen(spec: Mapping[str, Any], index: int) -> dict[str, Any]:
    heuristics = _module("humming.tune").get_heuristics_config
    return dict(heuristics(_layer(spec), shape_m=spec["rows"], device=index))


def _rastered(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The tile with the order of tiles that the library deems best for the cache."""
    tile = {name: tuple(value) if isinstance(value, list) else value for name, value in spec["tile"].items()}
    raster = _module("humming.tune.raster").raster_group_m_for_config
    return {**tile, "raster_group_m": raster(_layer(spec), tile["block_shape"], tile["multi_cast_size_a"])}


def _layer(spec: Mapping[str, Any]) -> Any:
    return _module("humming.config").LayerConfig(**spec["layer"])


def _module(name: str) -> Any:
    with _without_build():
        return importlib.import_module(name)


@contextlib.contextmanager
def _without_build() -> Iterator[None]:
    """Keep the library from starting a process that prepares its launcher, as it does when it is imported."""
    was = os.environ.get(_NO_BUILD)
    os.environ[_NO_BUILD] = "1"
    try:
        yield
    finally:
        if was is None:
            del os.environ[_NO_BUILD]
        else:
            os.environ[_NO_BUILD] = was
