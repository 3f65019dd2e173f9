"""A process that compiles variants; it needs no GPU. ``python -m registry.tuner.workers.compile_worker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from ...discovery.catalog import Catalog
from ...faults.host_faults import host_fault
from ..jobs import CompileJob, job_from_json
from ..processes.cores import bind_to
from ..processes.process import Parent
from .statuses import status_of

_NICENESS = 10


def compile_one(catalog: Catalog, job: CompileJob) -> dict[str, Any]:
    """The answer to one job: ``built`` or ``failed``."""
    implementation = catalog.implementation(job.op, job.implementation)
    try:
        return {"built": asdict(implementation.compile(job.variant, job.target))}
    except BaseException as fault:  # a stranger's compile step; its fault, SystemExit too, is the candidate's
        status, message = status_of(fault)
        if status == "error" and not host_fault(fault):
            status = "compile_error"
        return {"failed": {"status": status, "message": message}}


def main(arguments: Sequence[str]) -> None:
    """``compile_worker DESCRIPTOR PARENT CORES [PLUGIN_FILE ...]``; CORES as ``cores.as_argument`` writes them."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    # the worker on the device must never wait for a core: compilers yield to it
    os.nice(_NICENESS)
    bind_to(arguments[2])
    torch.set_num_threads(1)  # OMP_NUM_THREADS comes too late for a process that was forked
    serve(parent, arguments[3:])


def serve(parent: Parent, plugins: Sequence[str]) -> None:
    """Load the files of plugins, tell ``parent`` that it may ask, and answer its compile jobs until it ends."""
    catalog = Catalog()
    for path in plugins:
        catalog.load_file(path)
    parent.send({"ready": True})
    for message in parent:
        job = job_from_json(message)
        assert isinstance(job, CompileJob)
        parent.send({"id": job.id, "step": "compile"})
        parent.send({"id": job.id, **compile_one(catalog, job)})


if __name__ == "__main__":
    main(sys.argv[1:])
