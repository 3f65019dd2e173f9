"""What Liger imports, for seconds, before its first kernel runs."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any, cast

from registry.device import driver_left_alone

_PEFT = "peft"


def import_kernels() -> None:
    """Import Liger's kernels, without PEFT, in the process that the tuner's processes are forked from.

    Liger imports PEFT to know whether a model may be of PEFT's, which no kernel asks. PEFT takes seconds, and what it
    imports starts threads. Liger's modules look for a GPU when they are imported.
    """
    hides = _PEFT not in sys.modules
    if hides:
        sys.modules[_PEFT] = cast("Any", None)  # so that importing it is an ImportError
    try:
        with contextlib.suppress(ImportError), driver_left_alone():  # Liger says itself what is missing
            importlib.import_module("liger_kernel.ops")
    finally:
        if hides:
            del sys.modules[_PEFT]
