"""A process that compiles variants of torch.compile for a device of another node, which need not be here.

``python -m registry.fleet.on_ray.ahead_worker``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import torch

from ...backends.inductor import absent_gpu
from ...errors import DeviceError
from ...tuner.processes.process import Parent
from ...tuner.workers.compile_worker import serve

_NICENESS = 10


def main(arguments: Sequence[str]) -> None:
    """``ahead_worker DESCRIPTOR PARENT GPU [PLUGIN_FILE ...]``; GPU: torch's properties as JSON, ``{}`` for a CPU."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    gpu = json.loads(arguments[2])
    try:
        if gpu:
            absent_gpu.assume(gpu)
    except DeviceError as fault:
        parent.send({"refused": fault.message})
        return
    serve(parent, arguments[3:])


if __name__ == "__main__":
    main(sys.argv[1:])
