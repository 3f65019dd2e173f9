"""Settings of a process that a candidate may leave changed for the candidates verified and timed after it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode

from ...discovery.process_settings import PROCESS_SETTINGS, Setting
from ..measure.persisting_cache import keep_persisting, persisting_bytes


def _modes() -> tuple[int, int]:
    """How many of torch's function modes and dispatch modes are active."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def _leave_modes(left: tuple[int, int]) -> None:
    functions, operators = left
    while torch._C._len_torch_function_stack() > functions:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > operators:
        _pop_mode()


_JUDGING = tuple(
    f"aten::{name}"
    for name in ("all", "le.Tensor", "eq.Tensor", "copy_", "_foreach_copy_", "stack", "_local_scalar_dense")
)
"""Operators that every check uses; to look up all operators would take 15 µs each."""
_DEVICES = (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def _operators() -> frozenset[str]:
    """Torch's operators for which other code is registered, except those that torch itself overrides."""
    fallbacks = {f"{key.name} fallback" for key in _DEVICES if torch._C._dispatch_has_backend_fallback(key)}
    return frozenset(_replaced() | fallbacks | _registered())


def _replaced() -> set[str]:
    """The operators in Python's list of what was replaced since the start."""
    new = torch.library._impls - _PASSED
    # code for the device "meta" cannot make the result of a call
    found = {name for name in new if name.startswith("aten/") and not name.endswith("/Meta")}
    # libraries replace dozens of operators that are not torch's own
    _PASSED.update(new - found)
    if not found:
        return found
    native = getattr(sys.modules.get("torch._native.registry"), "_override_libs", {})
    return found - {"/".join(key) for key in native}


def _dumped() -> tuple[str, ...]:
    """For each judging operator what is registered, also code that no list in Python shows."""
    return tuple(map(torch._C._dispatch_dump, _JUDGING))


def _registered() -> set[str]:
    """The code registered for the judging operators since the start, a line each."""
    now = _dumped()
    if now == _DUMPED_AT_FIRST:
        return set()
    return {
        f"{name.removeprefix('aten::')} {line}"
        for name, dumped, first in zip(_JUDGING, now, _DUMPED_AT_FIRST, strict=True)
        for line in set(dumped.splitlines()) - set(first.splitlines())
        if line[:4] != "Meta"
    }


_PASSED = set(torch.library._impls)
"""Names of operators that were replaced at the start, or are no operators of torch's."""
_DUMPED_AT_FIRST = _dumped()


_SIGNALS = tuple(signal.valid_signals())
# signal's own function looks each handler up in an enumeration, which takes 1 µs
_handler_of: Callable[[int], Any] = getattr(getattr(signal, "_signal", signal), "getsignal", signal.getsignal)


def _handlers() -> dict[int, Any]:
    """Python's own handlers of signals, by number."""
    return {number: found for number in _SIGNALS if callable(found := _handler_of(number))}


def _set_handlers(value: Mapping[int, Any]) -> None:
    for number in _handlers().keys() - value.keys():
        signal.signal(number, signal.SIG_DFL)
    for number, handler in value.items():
        signal.signal(number, handler)


_TIMERS = tuple(
    timer
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    if (timer := getattr(signal, name, None)) is not None
)


def _timers() -> tuple[bool, ...]:
    return tuple(signal.getitimer(timer) != (0.0, 0.0) for timer in _TIMERS)


def _stop_timers(running: Sequence[bool]) -> None:
    for timer, runs in zip(_TIMERS, running, strict=True):
        if not runs:
            signal.setitimer(timer, 0)


_BINDING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def _cores() -> frozenset[int]:
    """The cores that this thread may run on; none where the user asked a library to bind threads itself."""
    asked = any(map(os.environ.__contains__, _BINDING))
    return frozenset() if asked or not hasattr(os, "sched_getaffinity") else frozenset(os.sched_getaffinity(0))


def _set_cores(value: frozenset[int]) -> None:
    if value:
        os.sched_setaffinity(0, value)


def _priority() -> int:
    """The process's priority, where there is one: 0 is usual, 19 the least."""
    return os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0


def _set_callbacks(value: tuple[Any, ...]) -> None:
    gc.callbacks[:] = value


SETTINGS: Mapping[str, Setting] = {
    **PROCESS_SETTINGS,
    "torch's inference mode": Setting(torch.is_inference_mode_enabled),
    "torch's modes": Setting(_modes, _leave_modes),
    "torch's operators": Setting(_operators),
    "callbacks of garbage collection": Setting(lambda: tuple(gc.callbacks), _set_callbacks),
    "bytes of the L2 cache that persist": Setting(persisting_bytes, keep_persisting),
    "Python's profile function": Setting(sys.getprofile, sys.setprofile),
    "Python's trace function": Setting(sys.gettrace, sys.settrace),
    "priority": Setting(_priority),
    "timers": Setting(_timers, _stop_timers),
    "handlers of signals": Setting(_handlers, _set_handlers),
    "cores to run on": Setting(_cores, _set_cores),
}
"""The settings by name, in the order in which they are put back."""
