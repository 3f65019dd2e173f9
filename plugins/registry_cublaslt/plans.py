"""Planned products: the algorithms that the heuristics name for a form, and a launch by one call of the library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from registry import UnsupportedError
from registry.backends.cuda_stream import current_stream

from . import library
from .form import DataType, MatmulForm
from .library import HostNumbers, LtHandle

ALIGNMENT = 16
"""Bytes; what the trait ``aligned`` promises of each tensor."""

_ASKED = 64
"""The algorithms that the heuristics are asked for, at most."""
_TRANSPOSED = 1
"""``CUBLAS_OP_T``."""
_BIAS = 4
"""``CUBLASLT_EPILOGUE_BIAS``."""
_SOMEWHERE = 1 << 20
"""An address in place of a tensor's: the heuristics look at its alignment alone."""

EnqueueMatmul = Callable[[int, int, int, tuple[int, ...], int], None]
"""``enqueue(weight, activations, result, pointers, workspace)``: addresses; ``pointers`` as in ``pointer_names``."""


class LtAlgorithm(NamedTuple):
    """An algorithm of the heuristics. ``data``: the library's struct; ``workspace``: bytes that it needs."""

    data: HostNumbers
    workspace: int


def pointer_names(form: MatmulForm) -> tuple[str, ...]:
    """The attributes of an operation that hold tensors' addresses."""
    scales = () if form.scales is None else ("A_SCALE_POINTER", "B_SCALE_POINTER")
    return (*scales, "BIAS_POINTER") if form.bias else scales


class LtOperation:
    """A form's descriptor with the addresses of scales and bias. One a thread: the library reads it at each launch."""

    def __init__(self, form: MatmulForm) -> None:
        lt = library.binding()
        made = lt.matmul_desc_create(form.compute, int(form.scale_type))
        self._handle = LtHandle(made, lt.matmul_desc_destroy)
        self.value = self._handle.value
        library.set_operation(self._handle, "TRANSA", _TRANSPOSED)
        if form.bias:
            library.set_operation(self._handle, "EPILOGUE", _BIAS)
            library.set_operation(self._handle, "BIAS_DATA_TYPE", int(form.result))
        for name, mode in zip(("A_SCALE_MODE", "B_SCALE_MODE"), form.scales or (), strict=False):
            if mode:  # older versions know no other kind than 0, and not the attribute
                library.set_operation(self._handle, name, int(mode))
        self._attributes = [int(lt.MatmulDescAttribute[name]) for name in pointer_names(form)]
        self._words = [HostNumbers([0], np.int64) for _ in self._attributes]
        self._set = lt.matmul_desc_set_attribute
        self.pointers: tuple[int, ...] = ()
        self.point(tuple(_SOMEWHERE for _ in self._attributes))

    def point(self, pointers: tuple[int, ...]) -> None:
        """Set the addresses from which the product reads scales and bias."""
        for attribute, word, pointer in zip(self._attributes, self._words, pointers, strict=True):
            word.array[0] = pointer
            self._set(self.value, attribute, word.address, word.nbytes)
        self.pointers = pointers


class LtLayouts:
    """The layouts of weight, activations and result."""

    def __init__(self, form: MatmulForm) -> None:
        self.weight = library.matrix_layout(form.operand, form.k, form.n)
        self.activations = library.matrix_layout(form.operand, form.k, form.m)
        self.result = library.matrix_layout(form.result, form.n, form.m)


@lru_cache(maxsize=1024)
def algorithms(form: MatmulForm, workspace: int, index: int) -> tuple[LtAlgorithm, ...]:
    """The algorithms for a form on device ``index``, what the library deems best first.

    ``workspace`` is how many bytes they may use: with 0 those that need none, else only those that need some, so that
    no algorithm is in both lists. Called with that device the current one.
    """
    lt, operation, layouts = library.binding(), LtOperation(form), LtLayouts(form)
    preference = LtHandle(lt.matmul_preference_create(), lt.matmul_preference_destroy)
    library.set_preference(preference, "MAX_WORKSPACE_BYTES", workspace)
    for operand in "ABCD":
        library.set_preference(preference, f"MIN_ALIGNMENT_{operand}_BYTES", ALIGNMENT)
    found = np.zeros(_ASKED, dtype=lt.matmul_heuristic_result_dtype)
    count = HostNumbers([0], np.int32)
    try:
        lt.matmul_algo_get_heuristic(
            library.handle_of(index), operation.value, layouts.weight.value, layouts.activations.value,
            layouts.result.value, layouts.result.value, preference.value, _ASKED, found.ctypes.data, count.address,
        )  # fmt: skip
    except lt.cuBLASLtError as fault:
        raise UnsupportedError(f"cuBLASLt has no algorithm for {form}: {fault}") from fault
    usable = [one for one in found[: int(count.array[0])] if one["state"] == 0]
    return tuple(_algorithm(one) for one in usable if bool(one["workspace_size"]) == bool(workspace))


def _algorithm(found: Any) -> LtAlgorithm:
    return LtAlgorithm(HostNumbers([found["algo"]], found["algo"].dtype), int(found["workspace_size"]))


def chosen(form: MatmulForm, place: int, workspace: int, index: int) -> LtAlgorithm:
    """The algorithm at a place of the list. Raises UnsupportedError where the list is shorter."""
    found = algorithms(form, workspace, index)
    if place >= len(found):
        kind = f"with up to {workspace} bytes of workspace" if workspace else "without workspace"
        raise UnsupportedError(f"cuBLASLt names {len(found)} algorithms {kind} for this product, not {place + 1}")
    return found[place]


def launcher(form: MatmulForm, algorithm: LtAlgorithm, workspace: int, index: int) -> EnqueueMatmul:
    """A function that enqueues the product on the current stream of device ``index``, which must be the current one."""
    matmul, handle, layouts = library.binding().matmul, library.handle_of(index), LtLayouts(form)
    kind: Any = np.int32 if form.scale_type is DataType.INT32 else np.float32
    one, zero = HostNumbers([1], kind), HostNumbers([0], kind)
    alpha, beta, data = one.address, zero.address, algorithm.data.address
    of_weight, of_activations, of_result = (
        layout.value for layout in (layouts.weight, layouts.activations, layouts.result)
    )
    of_thread = _OfThread(form)

    def enqueue(weight: int, activations: int, result: int, pointers: tuple[int, ...], scratch: int) -> None:
        operation = of_thread.operation
        if operation.pointers != pointers:
            operation.point(pointers)
        matmul(
            handle, operation.value, alpha, weight, of_weight, activations, of_activations, beta, result, of_result,
            result, of_result, data, scratch, workspace, current_stream(index),
        )  # fmt: skip

    # what the addresses are of lives as long as the function
    enqueue.held = (layouts, algorithm, one, zero)  # type: ignore[attr-defined]
    return enqueue


class _OfThread(threading.local):
    def __init__(self, form: MatmulForm) -> None:
        self.operation = LtOperation(form)
