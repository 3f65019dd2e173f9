"""The source that Inductor writes for a function: the one module that knows the private parts of that.

Inductor is asked for Triton on tensors of the CPU, so that no GPU is needed. Nothing of what it writes is compiled or
run: it ends with an exception as soon as it has written the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch

from ..errors import RegistryError, in_a_line

_SETTINGS: dict[str, Any] = {
    "cpu_backend": "triton",
    "compile_threads": 1,
    "fx_graph_cache": False,
    "force_disable_caches": True,
    "split_reductions": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "online_softmax": False,
    "cpp_wrapper": False,
    "max_autotune": False,
    "triton.max_tiles": 1,
    "triton.cooperative_reductions": False,
    "triton.persistent_reductions": True,
    "triton.multi_kernel": 0,
}
"""Settings of Inductor with which a kernel takes plain pointers, and is one block of rows or elements."""


class _WrittenError(BaseException):
    """Inductor has written its source; no handler of an Exception on the way sees it."""


def written_by_inductor(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> str:
    """The module that Inductor writes for ``function`` of these tensors, of the CPU. Raises RegistryError."""
    from torch.fx.experimental.proxy_tensor import make_fx

    found: list[str] = []

    def keep(code: str) -> None:
        found.append(code)
        raise _WrittenError

    try:
        with torch.no_grad():
            graph = make_fx(function)(*tensors)
            with _asked_for_triton(keep):
                torch._inductor.compile(graph, list(tensors))
    except _WrittenError:
        pass
    except Exception as fault:
        if not found:
            raise RegistryError(
                f"torch.compile writes no Triton for the reference: {in_a_line(fault)}",
                hint="begin with `registry new plugin --backend triton`",
            ) from fault
    if not found:
        raise RegistryError("torch.compile wrote no source for the reference", hint="the reference computes nothing")
    return found[0]


@contextlib.contextmanager
def _asked_for_triton(keep: Callable[[str], None]) -> Iterator[None]:
    """A context in which Inductor writes Triton for the CPU, and hands its source to ``keep``.

    Raises RegistryError for a torch whose private parts have other names.
    """
    try:
        config = import_module("torch._inductor.config")
        graph = import_module("torch._inductor.graph").GraphLowering
        triton_of_torch = import_module("torch.utils._triton")
        known = {name: value for name, value in _SETTINGS.items() if name in config._config}
        with (
            config.patch(known),
            _replaced(graph, "save_output_code", staticmethod(keep)),
            # the hash of a driver, which a machine without a GPU does not have; it becomes a part of metadata alone
            _replaced(triton_of_torch, "triton_hash_with_backend", lambda *_: ""),
        ):
            yield
    except (ImportError, AttributeError) as fault:
        raise RegistryError(
            f"torch {torch.__version__} does not show the source that Inductor writes: {in_a_line(fault)}"
        ) from fault


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: object) -> Iterator[None]:
    """A context in which an attribute has another value. Raises AttributeError where there is none."""
    before = vars(holder)[name] if name in vars(holder) else getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
