"""torch's private functions that the hot path uses: each is tested at import, with a public one if the test fails.

The tests run in a thread of their own: this module may be imported in inference mode, under autocast, within
``torch.device("meta")`` or while fake tensors are traced, all of which are states of the importing thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import forward_ad

from ...problem import TensorSpec
from ...tracing import constant_while_tracing
from .nvtx import NVTX

TorchCheck = Callable[..., bool]

_STANDING = frozenset({"torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor"})
"""Modules of tensors without memory, and of the modes that make them."""
_TRACING = _STANDING | {"torch.fx.experimental.proxy_tensor"}

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_functorch: Any = getattr(torch._C, "_functorch", None)


# --- guards


# None stands for the tensors' own sizes and strides, in a third of the time of lists: each new size makes a guard
_own_guards: Any = hasattr(_guards, "TensorGuards") and partial(
    _guards.TensorGuards, dynamic_dims_sizes=None, dynamic_dims_strides=None
)


def native_guard(*tensors: torch.Tensor) -> TorchCheck:
    """``check(*tensors)`` in C, about 0.1 µs: class, dtype, shape, strides, device, requires_grad and dispatch state.

    The state covers inference mode, autocast of that device, vmap, func.grad and jit tracing; not dispatch modes,
    forward AD and grad mode. It refuses one tensor given twice, and raises TypeError for another number of tensors.
    """
    check: TorchCheck = _own_guards(*tensors).check
    return check


def kind_guard(tensors: Sequence[torch.Tensor]) -> TorchCheck | None:
    """``native_guard`` for tensors with these numbers of dimensions, any sizes and strides; None if torch has none."""
    if not NATIVE_GUARD:
        return None
    anything = [[None] * tensor.dim() for tensor in tensors]
    check: TorchCheck = _guards.TensorGuards(*tensors, dynamic_dims_sizes=anything, dynamic_dims_strides=anything).check
    return check


def public_guard(*tensors: torch.Tensor) -> TorchCheck:
    """``native_guard`` through torch's public functions, about 2 µs a tensor."""
    expected = [_observed(tensor) for tensor in tensors]

    def check(*given: Any) -> bool:
        if len(given) != len(expected):
            raise TypeError("wrong length")
        return all(
            isinstance(value, torch.Tensor) and _observed(value) == seen
            for value, seen in zip(given, expected, strict=True)
        )

    return check


def _observed(tensor: torch.Tensor) -> tuple[object, ...]:
    kind = tensor.device.type
    state = (torch.is_inference_mode_enabled(), autocasting(kind), transforming(), jit_tracing())
    form = (type(tensor), tensor.dtype, tensor.layout, tensor.device, tensor.requires_grad, tensor.is_inference())
    if tensor.layout != torch.strided:
        return (*state, *form)
    return (
        *state,
        *form,
        tensor.is_neg(),
        tensor.is_conj(),
        zero_without_memory(tensor),
        tensor.shape,
        tensor.stride(),
    )


def _native_guard_works() -> bool:
    empty = partial(torch.empty, dtype=torch.float32, device="cpu")
    x, y = empty(2, 3), empty(3)
    subclass = type("_Subclass", (torch.Tensor,), {})
    refused = [
        x.t().contiguous().t(),
        empty(4, 3),
        x.double(),
        x.clone().requires_grad_(),
        x.as_subclass(subclass),
    ]
    try:
        check = native_guard(x, y)
        if not check(x, y) or not check(empty(2, 3), empty(3)) or any(check(bad, y) for bad in refused):
            return False
        with torch.inference_mode():
            if check(x, y):
                return False
        with torch.autocast("cpu"):
            return not check(x, y)
    except (AttributeError, TypeError, RuntimeError, SystemError):
        return False


# --- states of torch


def _dispatch_mode_counter() -> Callable[[], int]:
    native = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if native is not None:
        return native  # type: ignore[no-any-return]
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return lambda: int(_get_current_dispatch_mode() is not None)


dispatch_modes = _dispatch_mode_counter()
"""``dispatch_modes()``: the number of active dispatch modes (FakeTensorMode, make_fx, FLOP counters) of this thread."""


dispatch_mode_stack: Callable[[], list[Any]] = getattr(
    torch.utils._python_dispatch, "_get_current_dispatch_mode_stack", list
)
"""The dispatch modes that are active on this thread."""


def tracing_modes() -> bool:
    """True if a dispatch mode of this thread makes a graph of operators, or stands in for them; not if all listen."""
    return any(type(mode).__module__ in _TRACING for mode in dispatch_mode_stack())


profiler: Any = torch.autograd.profiler
"""A module, or a substitute: ``_is_profiler_enabled`` is True while a profiler of torch runs in this process."""
if not hasattr(profiler, "_is_profiler_enabled"):
    profiler = SimpleNamespace(_is_profiler_enabled=False)
if NVTX:
    profiler = SimpleNamespace(_is_profiler_enabled=True)  # every call is recorded, so that it has its range

function_modes: Callable[[], bool] = getattr(
    torch._C, "_is_torch_function_mode_enabled", lambda: bool(torch.overrides._get_current_function_mode_stack())
)
"""``function_modes()``: True if a TorchFunctionMode is active on this thread, e.g. a ``with torch.device(...)``."""

unseen: Callable[[], AbstractContextManager[Any]] = torch._C.DisableTorchFunction
"""A context in which neither a TorchFunctionMode nor a tensor subclass intercepts torch's functions."""


def unseen_by_modes() -> AbstractContextManager[Any]:
    """``unseen`` if a TorchFunctionMode is active; else a context without effect, since torch.compile guards on it."""
    return unseen() if function_modes() else nullcontext()


forward_level: Any = forward_ad if hasattr(forward_ad, "_current_level") else SimpleNamespace(_current_level=0)
"""``_current_level`` is not negative in a block of forward-mode AD, or if torch does not tell."""


@constant_while_tracing  # torch 2.11 cannot trace is_autocast_available
def autocasting(device_type: str) -> bool:
    """True if autocast is enabled for that type of device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def jit_tracing() -> bool:
    """True if torch.jit.trace is recording on this thread."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def transforming() -> bool:
    """True if a functorch transform (vmap, func.grad, func.jvp) runs on this thread, or if torch does not tell."""
    peek = getattr(_functorch, "peek_interpreter_stack", None)
    return peek is None or peek() is not None


def keeps_graph() -> bool:
    """True if the backward that runs keeps its graph, so that another may follow, or if torch does not tell."""
    keeps = getattr(getattr(torch._C, "_autograd", None), "_get_current_graph_task_keep_graph", None)
    return keeps is None or bool(keeps())


below_autograd: Callable[[], AbstractContextManager[Any]] | None = getattr(torch._C, "_AutoDispatchBelowAutograd", None)
"""A context in which torch's operators skip their autograd kernels; None if this torch has none."""


def _keys_of_a_new_thread() -> tuple[Any, Any] | None:
    names = ("_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set", "_ForceDispatchKeyGuard")
    if not all(hasattr(torch._C, name) for name in names):
        return None
    with ThreadPoolExecutor(1) as threads:
        included, excluded = (threads.submit(getattr(torch._C, name)).result() for name in names[:2])
    return included, excluded


_KEYS = _keys_of_a_new_thread()


def recording_anew() -> AbstractContextManager[Any]:
    """A context, for an operator's kernel, with the dispatch keys of a new thread: autograd sees torch's operations.

    torch calls the kernel below autograd if a dispatch mode listens. In the context no mode and no autocast is active.
    It has no effect if this torch has no such function.
    """
    return nullcontext() if _KEYS is None else torch._C._ForceDispatchKeyGuard(*_KEYS)


def zero_without_memory(tensor: torch.Tensor) -> bool:
    """True if a tensor is autograd's zero, which has no memory: only torch's operations can read it."""
    tells = getattr(tensor, "_is_zerotensor", None)
    return tells is not None and bool(tells())


def stands_for_others(tensor: torch.Tensor) -> bool:
    """True if torch made this tensor for tracing: a FakeTensor, or a FunctionalTensor around one."""
    return type(tensor).__module__ in _STANDING


# --- allocation


Allocate = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""``make(shape, strides, dtype)``: an uninitialised tensor. For a GPU that GPU must be the current device."""


def allocator(dtype: torch.dtype, device: torch.device) -> Allocate:
    """The fastest function of this torch that allocates tensors of ``dtype`` on ``device``."""
    if NATIVE_ALLOCATOR and device.type in {"cpu", "cuda"}:
        return native_allocator(device)
    return public_allocator(dtype, device)


def native_allocator(device: torch.device) -> Allocate:
    """The function with which Inductor's generated code allocates, for a CPU or a GPU."""
    native: Allocate = _guards._empty_strided_cuda if device.type == "cuda" else _guards._empty_strided_cpu
    return native


def public_allocator(dtype: torch.dtype, device: torch.device) -> Allocate:
    """``torch.empty_strided``, about 0.4 µs slower."""
    return lambda shape, strides, _: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _native_allocator_works() -> bool:
    spec = TensorSpec((2, 3), torch.bfloat16, (1, 2))
    try:
        made = native_allocator(spec.device)(spec.shape, spec.strides, spec.dtype)
        return TensorSpec.of(made) == spec and hasattr(_guards, "_empty_strided_cuda")
    except (AttributeError, TypeError, RuntimeError):
        return False


def _in_clean_thread(test: Callable[[], bool]) -> bool:
    passed: list[bool] = []
    thread = threading.Thread(target=lambda: passed.append(test()), name="registry-self-test")
    thread.start()
    thread.join()
    return passed == [True]


NATIVE_GUARD = _in_clean_thread(_native_guard_works)
NATIVE_ALLOCATOR = _in_clean_thread(_native_allocator_works)


tensor_guard: Callable[..., TorchCheck] = native_guard if NATIVE_GUARD else public_guard
"""The fastest guard of this torch that passes the tests; see ``native_guard``."""


stream_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
"""Whether the current stream of this thread's current GPU is being captured; CUDA must be in use."""
