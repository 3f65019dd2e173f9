"""Settings of a process that a plugin may change for everybody when it is imported, or when its hooks run."""

from __future__ import annotations

import gc
import locale
import operator
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from ..backends.compiler_environment import told_to_compilers
from .random_states import random_states_kept


class Setting(NamedTuple):
    """Functions that read and restore a setting; ``restore`` is None for one that cannot be put back.

    ``differs(was, now)``: whether a change is one that others suffer from. ``shown(was, now)``: what is told of both,
    the values themselves by default.
    """

    read: Callable[[], Any]
    restore: Callable[[Any], Any] | None = None
    differs: Callable[[Any, Any], bool] = operator.ne
    shown: Callable[[Any, Any], tuple[object, object]] = lambda was, now: (was, now)


def _default_device() -> torch.device | None:
    """The device that ``torch.set_default_device`` has set; None where nobody has."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _matmul_precision() -> str:
    """highest, high or medium; what torch's newer switch for CUDA says if that was used, since torch then does not."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return str(torch.backends.cuda.matmul.fp32_precision)


def _set_matmul_precision(value: str) -> None:
    if value in {"highest", "high", "medium"}:
        torch.set_float32_matmul_precision(value)
    else:
        torch.backends.cuda.matmul.fp32_precision = value


def _deterministic() -> tuple[bool, bool]:
    """Whether torch uses deterministic algorithms alone, and whether it only warns where it has none."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _cudnn() -> dict[str, bool]:
    return {
        "enabled": torch._C._get_cudnn_enabled(),
        "benchmark": torch._C._get_cudnn_benchmark(),
        "deterministic": torch._C._get_cudnn_deterministic(),
    }


def _set_cudnn(value: Mapping[str, bool]) -> None:
    torch._C._set_cudnn_enabled(value["enabled"])
    torch._C._set_cudnn_benchmark(value["benchmark"])
    torch._C._set_cudnn_deterministic(value["deterministic"])


def _collect(on: bool) -> None:
    if on:
        gc.enable()
    else:
        gc.disable()


def _autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def _set_autocast(value: Sequence[tuple[bool, torch.dtype]]) -> None:
    for kind, (enabled, dtype) in zip(("cpu", "cuda"), value, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _keeps_subnormals() -> bool:
    """Whether this thread computes with numbers below the smallest normal one, which a library's start may turn off."""
    return sys.float_info.min / 2 != 0


def _errors_among_warnings() -> tuple[Any, ...]:
    """The filters that make errors of warnings; libraries add others when they are imported."""
    return tuple(one for one in warnings.filters if one[0] == "error")


def _warn_again(value: Sequence[Any]) -> None:
    kept = [one for one in warnings.filters if one[0] != "error" or one in value]
    # the module's own list, which Python also reads from C
    warnings.filters[:] = [*(one for one in value if one not in kept), *kept]  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _ends() -> tuple[Any, ...]:
    """The handlers of the signals by which a user ends a program in order."""
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


def _set_ends(value: tuple[Any, ...]) -> None:
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), value, strict=True):
        with suppress(ValueError, TypeError):  # another thread's, or one that is not Python's
            signal.signal(number, handler)


_OBEYED = frozenset({"CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"})
"""Environment variables that CUDA obeys: those of all programs, whichever library they use."""
_OURS = "KERNEL_REGISTRY_"


def _environment() -> dict[str, str]:
    """The environment variables that decide what is compiled, where it runs, and which database answers.

    Others are a library's own affair, which may set them for itself when it is imported.
    """
    own = {name: value for name, value in os.environ.items() if name in _OBEYED or name.startswith(_OURS)}
    return {**own, **told_to_compilers()}


def _set_environment(value: Mapping[str, str]) -> None:
    for name in _environment().keys() - value.keys():
        del os.environ[name]
    os.environ.update(value)


def _changed(was: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, str]:
    """The names of variables in ``was`` and ``now`` that differ, without their values, which may hold passwords."""
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    before = ", ".join(name if name in was else f"no {name}" for name in names)
    return before, ", ".join(f"another {name}" if name in now else f"no {name}" for name in names)


PROCESS_SETTINGS: Mapping[str, Setting] = {
    "torch's default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": Setting(_default_device, torch.set_default_device),
    "torch's number of threads": Setting(torch.get_num_threads, torch.set_num_threads),
    "torch's grad mode": Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's autocast": Setting(_autocast, _set_autocast),
    "float32 matmul precision": Setting(_matmul_precision, _set_matmul_precision),
    "deterministic algorithms": Setting(_deterministic, _set_deterministic),
    "torch's use of oneDNN": Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "torch's use of cuDNN": Setting(_cudnn, _set_cudnn),
    "subnormal numbers": Setting(_keeps_subnormals, lambda kept: torch.set_flush_denormal(not kept)),
    "garbage collection": Setting(gc.isenabled, _collect),
    "thresholds of garbage collection": Setting(gc.get_threshold, lambda value: gc.set_threshold(*value)),
    "Python's switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    # libraries raise it, and nobody is worse off
    "depth of Python's calls": Setting(sys.getrecursionlimit, sys.setrecursionlimit, operator.gt),
    "NumPy's errors": Setting(np.geterr, lambda value: np.seterr(**value)),
    "warnings that are errors": Setting(_errors_among_warnings, _warn_again),
    "handlers of Ctrl-C and SIGTERM": Setting(_ends, _set_ends),
    "environment variables": Setting(_environment, _set_environment, shown=_changed),
    "locale": Setting(lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
}
"""The settings by name, in the order in which they are put back; all can be."""


def other_threads() -> int:
    """How many threads Python knows beside this one."""
    return threading.active_count() - 1


@contextmanager
def settings_kept(tell: Callable[[str], None]) -> Iterator[None]:
    """Context after which the settings are as before it; ``tell`` gets a line for each that was changed in it.

    Generators of random numbers go on as before it, which nobody is told: to draw from them is no fault. Nothing is put
    back where the process has other threads before: what one of them sets meanwhile is the program's.
    """
    if other_threads():
        yield
        return
    before = {name: setting.read() for name, setting in PROCESS_SETTINGS.items()}
    told = []
    try:
        with random_states_kept():
            yield
    finally:
        told = [_put_back(name, was) for name, was in before.items()]
    for text in filter(None, told):
        tell(text)


def _put_back(name: str, was: Any) -> str:
    """What is told of a setting that was ``was``; "" where it is that."""
    setting = PROCESS_SETTINGS[name]
    now = setting.read()
    if setting.restore is None or not setting.differs(was, now):
        return ""
    setting.restore(was)
    again = setting.read()
    ends = "it is again as it was" if again == was else f"it is {setting.shown(was, again)[1]} now"
    before, after = setting.shown(was, now)
    return f"it sets {name} to {after} for the whole process when it is loaded; it was {before}, and {ends}"
