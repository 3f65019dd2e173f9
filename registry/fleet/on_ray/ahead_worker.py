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
from ...discovery.catalog import Catalog
from ...errors import DeviceError
from ...tuner.jobs import CompileJob, job_from_json
from ...tuner.processes.process import Parent
from ...tuner.workers.compile_worker import compile_one

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
    catalog = Catalog()
    for path in arguments[3:]:
        catalog.load_file(path)
    parent.send({"ready": True})
    for message in parent:
        job = job_from_json(message)
        assert isinstance(job, CompileJob)
        parent.send({"id": job.id, **compile_one(catalog, job)})


if __name__ == "__main__":
    main(sys.argv[1:])
