"""What Liger imports, for seconds, before its first kernel runs: transformers and PEFT."""

from __future__ import annotations

import contextlib
import importlib
import os

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""A variable by which torch asks NVML for GPUs, which leaves a process that can be forked; CUDA's driver does not."""


def import_transformers() -> None:
    """Import them in the process that the tuner's processes are forked from."""
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        for module in ("transformers", "peft"):
            # Liger does without PEFT, and says itself where transformers is missing
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    finally:
        if before is None:
            del os.environ[_BY_NVML]
        else:
            os.environ[_BY_NVML] = before
