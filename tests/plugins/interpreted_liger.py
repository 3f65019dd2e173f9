"""Liger's kernels in Triton's interpreter, which lacks what they use of a GPU: the functions of its device library."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

_LOCK = threading.RLock()


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _rsqrt(x):  # type: ignore[no-untyped-def]
    return tl.rsqrt(x)


def make_able() -> None:
    """Have the interpreter of this process run Liger's kernels.

    Their tanh and rsqrt are those of a library for GPUs, here of the language itself; numbers that are no integers are
    passed as tensors, which a kernel converts; and launches wait for each other, since the interpreter keeps its state
    in a module.
    """
    for name, own in (("cross_entropy", _tanh), ("geglu", _tanh), ("layer_norm", _rsqrt), ("rms_norm", _rsqrt)):
        setattr(importlib.import_module(f"liger_kernel.ops.{name}"), "tanh" if own is _tanh else "rsqrt", own)
    converted, launched = interpreter._implicit_cvt, interpreter.GridExecutor.__call__

    def convert(value: Any) -> Any:
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return converted(value)

    def launch(*given: Any, **named: Any) -> Any:
        with _LOCK:
            return launched(*given, **named)

    interpreter._implicit_cvt, interpreter.GridExecutor.__call__ = convert, launch
