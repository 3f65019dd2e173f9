"""Functions compiled by Inductor ahead of their first call, as files that another process loads.

``torch.compile`` compiles in the calling process, at the first call. ``torch._inductor.standalone_compile`` (torch 2.8
and newer) compiles without data, saves the code, and loads it without Dynamo and its guards. It is private, so callers
of this module fall back to ``torch.compile``.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ...paths import compiler_caches
from ...problem import TensorSpec

MODULES = (
    "torch._inductor.standalone_compile",
    "torch._inductor.compile_fx",
    "torch._inductor.async_compile",
    "torch._inductor.runtime.triton_heuristics",
    "torch._higher_order_ops.triton_kernel_wrap",
)
"""What compiling and loading import, which takes seconds; importing them opens no device and starts no thread."""

Compiled = Callable[..., Any]
"""Takes the tensors, returns the output or a sequence of outputs."""

PATCHING = threading.RLock()
"""Held by whoever compiles: Inductor's configuration is the process's, not the thread's, and so are warnings."""


def available() -> bool:
    """True if this torch can save code that Inductor compiled."""
    inductor = _inductor()
    return hasattr(inductor, "CompiledArtifact") and hasattr(inductor, "standalone_compile")


def compile_to_file(function: Compiled, tensors: Sequence[TensorSpec], threads: int, file: Path) -> bool:
    """Compile ``function`` for tensors of these specs and save it; False when it compiled but cannot be saved.

    ``threads`` is the number of threads of a CPU kernel. Raises any exception of Inductor.
    """
    from torch._inductor import config
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    # one kernel a graph: a pool of compiler processes would cost more to start than it saves
    patched = config.patch({"cpp.threads": threads, "compile_threads": 1})
    # standalone_compile asks for the configurations to be timed at once: on a device where another process measures
    options = {"config_patches": {"triton.autotune_at_compile_time": False}}
    with PATCHING, quiet(), own_caches(), patched, torch.no_grad():
        with FakeTensorMode():
            fakes = [spec.empty() for spec in tensors]
            graph = make_fx(function)(*fakes)
        compiled = _inductor().standalone_compile(graph, fakes, dynamic_shapes="from_example_inputs", options=options)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        partial = Path(folder) / file.name
        try:
            compiled.save(path=str(partial), format="binary")
        except (RuntimeError, AssertionError) as fault:
            logging.getLogger(__name__).debug("%s: Inductor's artifact cannot be saved: %s", file.name, fault)
            return False
        partial.replace(file)
    return True


def load_file(file: Path) -> Compiled:
    """The function that ``compile_to_file`` saved. Raises any exception if another version of torch saved it."""
    with PATCHING, quiet(), own_caches():
        loaded: Compiled = _inductor().CompiledArtifact.load(path=str(file), format="binary")
    return loaded


def _inductor() -> Any:
    return importlib.import_module("torch._inductor")


@contextlib.contextmanager
def own_caches() -> Iterator[None]:
    """A context in which Inductor and Triton cache in this package's folders, which all processes of the user share.

    The caller must hold ``PATCHING``.
    """
    own = compiler_caches()
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Inductor's warnings and torch's log. The caller must hold ``PATCHING``."""
    # importing Inductor with a CUDA toolkit but without a GPU logs a warning of no use here
    logger = logging.getLogger("torch.utils.cpp_extension")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Inductor explains its choices in warnings; under -W error they would be faults
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
