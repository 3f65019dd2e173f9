"""Profiles the process that imports the registry, from then to its end: ``registry profile -- COMMAND`` starts such."""

from __future__ import annotations

import os
import sys
import warnings
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..dispatch.torch_side.profiles import PROFILE_VARIABLE

_TUNER = "registry.tuner."
_KINETO_LEVEL, _NOTHING = "KINETO_LOG_LEVEL", "99"
"""The variable by which kineto, torch's profiler, is told what to write to stderr, and a level above all of its own."""


def new_profiler() -> profile:
    """A profiler of the CPU, and of the GPU where there is one; of all threads, if torch can."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    else:
        # without a GPU kineto writes lines about that to stderr, between the program's
        os.environ.setdefault(_KINETO_LEVEL, _NOTHING)
    # else torch warns, when it is asked for the events
    return profile(activities=activities, experimental_config=_all_threads(), acc_events=True)


def begin() -> None:
    """Profile until the process ends, and write the trace into the variable's folder then.

    Processes of a tuning run are left alone: they time what they run.
    """
    if any(part.startswith(_TUNER) for part in sys.orig_argv):
        return
    folder = Path(os.environ[PROFILE_VARIABLE])
    profiler = new_profiler()
    profiler.start()
    # unlike atexit's, it runs in the children of multiprocessing too; a forked child has no profiler of its own
    Finalize(None, _end, (profiler, folder), exitpriority=100)


def _end(profiler: profile, folder: Path) -> None:
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        profiler.stop()
        profiler.export_chrome_trace(str(folder / f"{os.getpid()}.json"))
    except Exception as fault:
        # the program has ended, and its exit code is its own
        warnings.warn_explicit(
            f"{PROFILE_VARIABLE}: no trace was written: {fault}", RuntimeWarning, sys.argv[0] or "python", 0
        )


def _all_threads() -> Any:
    """torch's configuration by which a profiler sees threads that the starting one did not start; None without."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return None
