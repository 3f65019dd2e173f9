"""The process in which torch.compile's variants are compiled ahead, and the files that it makes."""

from __future__ import annotations

import json
import select
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...artifact import Target
from ...backends.inductor.conditions import GpuProperties
from ...tuner.jobs import CompileJob, to_json
from ...tuner.limits import Limits
from ...tuner.processes.process import Child
from .compiling_ahead import AheadVariant

_WORKER = "registry.fleet.on_ray.ahead_worker"
_KINDS = (".so", ".load_ok", ".bin")
"""Suffixes of the files that another node needs, in the order of their installation.

``.load_ok`` says that a library of an instruction set runs on this CPU. An artifact comes after its libraries: a worker
that loads it without them compiles them while it holds the device.
"""


@dataclass(frozen=True)
class AheadFiles:
    """The content of new files by their paths within the cache, and why there is no artifact, "" if there is one."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    fault: str = ""


class AheadProcess:
    """Compiles variants of torch.compile one after another for one device, which need not be here.

    Its cache is a folder of its own: an artifact's name does not tell the model of GPU, and all that is new in the
    folder belongs to the variant. ``plugins``: files to load.
    """

    def __init__(self, gpu: GpuProperties, plugins: Sequence[Path], limits: Limits | None = None) -> None:
        self._arguments = [json.dumps(dict(gpu)), *map(str, plugins)]
        self._limits = limits or Limits()
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-registry-")
        self._root = Path(self._folder.name).resolve()
        self._child: Child | None = None
        self._known: set[Path] = set()
        self._refused = ""

    def compile(self, ahead: AheadVariant, target: Target) -> AheadFiles:
        """Compile a variant; a process that ends or hangs is replaced for the next one."""
        if self._refused:
            return AheadFiles(fault=self._refused)
        implementation = ahead.implementation
        job = CompileJob(1, implementation.op, implementation.name, ahead.variant, target)
        try:
            answer = self._answer(to_json(job))
        except TimeoutError as fault:
            self._end()
            return AheadFiles(fault=str(fault))
        if "built" not in answer:
            self._refused = answer.get("refused", "")
            return AheadFiles(fault=self._refused or str(answer.get("failed", {}).get("message", answer)))
        if not answer["built"]["path"]:
            return AheadFiles(fault="Inductor's code cannot be saved")
        return AheadFiles(self._new_files())

    def close(self) -> None:
        """End the process, and remove its cache."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the process to a job, or the way it ended. Raises TimeoutError without an answer in time."""
        seconds = self._limits.compile
        if self._child is None:
            seconds = self._limits.start
            self._child = Child(
                _WORKER, self._arguments, self._environment(), memory_bytes=self._limits.memory, fresh=True
            )
        self._child.send(job)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._child], [], [], left)[0]:
                continue
            messages, there = self._child.receive()
            for message in messages:
                if not {"ready", "step"} & message.keys():
                    return dict(message)
                seconds = self._limits.compile
                end = time.monotonic() + seconds
            if not there:
                why = self._child.end().why
                self._end()
                return {"failed": {"message": f"its process ended: {why}"}}
        raise TimeoutError(f"compiling took more than {seconds:g} s")

    def _environment(self) -> dict[str, str]:
        folders = {
            "KERNEL_REGISTRY_CACHE": "",
            "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
            "TRITON_CACHE_DIR": "triton",
        }
        return {
            **{name: str(self._root / folder) for name, folder in folders.items()},
            "CUDA_VISIBLE_DEVICES": "",  # a GPU that is here may be another one's, or be measuring
        }

    def _new_files(self) -> dict[str, bytes]:
        found = [path for path in self._root.rglob("*") if path.suffix in _KINDS and path not in self._known]
        self._known.update(found)
        found.sort(key=lambda path: (_KINDS.index(path.suffix), path))
        return {path.relative_to(self._root).as_posix(): path.read_bytes() for path in found}
