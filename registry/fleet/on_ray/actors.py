"""Plain classes of which ``cluster`` makes actors: a worker on a GPU, a compiler, the shelf of artifacts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...backends.inductor.conditions import conditions, differing
from .ahead_process import AheadFiles, AheadProcess
from .artifact_files import digest_of, install, missing
from .compiling_ahead import AheadVariant, compile_ahead, key_of, variants_ahead
from .described_device import DescribedDevice

_END_S = 60.0
"""How long a worker may take to give its job back."""

SharedFile = tuple[str, str, Any]
"""Path in the cache, digest of the content, and the content's reference in the object store."""


@dataclass(frozen=True)
class WorkerReport:
    """The state of an actor's worker: its process, exit code (None while it runs), and what it said since last time."""

    host: str
    process: int
    code: int | None
    lines: Sequence[str] = ()


class NodeWorker:
    """A worker of the fleet in a child process, on the GPU that Ray has given this actor (or on the node's CPU).

    ``plugins``: name -> text of plugin files, which need not be on the node. The database's URL, which may hold a
    password, is passed in the environment. The child leaves when this process ends, however it ends.
    """

    def __init__(self, database: str, device: str, lease_s: float, plugins: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-registry-")
        command = [sys.executable, "-m", "registry.cli.main", "fleet", "work", "--until-eof"]
        command += ["--device", device, "--lease", f"{lease_s:g}"]
        for path in _written(plugins, Path(self._folder.name)):
            command += ["--plugin", str(path)]
        self._log = Path(self._folder.name, "log")
        self._read = 0
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, "KERNEL_REGISTRY_DB": database},
            )  # fmt: skip

    def report(self) -> WorkerReport:
        """The worker's state, and the whole lines that it printed since the last report."""
        code = self._process.poll()
        with self._log.open("rb") as log:
            log.seek(self._read)
            said = log.read()
        whole = said if code is not None else said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return WorkerReport(socket.gethostname(), self._process.pid, code, lines)

    def take(self, files: Sequence[SharedFile]) -> int:
        """Install artifacts in this node's cache; returns how many it lacked."""
        import ray

        wanted = missing({path: digest for path, digest, _ in files})
        count = 0
        for path, digest, reference in files:
            if path in wanted:
                try:
                    content: Any = ray.get(reference)
                    count += install(path, content, digest)
                except Exception:  # the node that compiled it has gone, or the disk is full: the worker compiles it
                    continue
        return count

    def stop(self) -> int | None:
        """Have the worker give its job back and leave; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@dataclass(frozen=True)
class AheadReport:
    """The number of variants that were compiled for a problem, and why others are left to the workers, a line each."""

    count: int
    left: Sequence[str] = ()


class AheadCompiler:
    """Compiles variants that workers will need; ``shelf`` is the handle of the ArtifactShelf actor."""

    def __init__(self, shelf: Any, plugins: Mapping[str, str]) -> None:
        from ...discovery.catalog import Catalog

        self._shelf = shelf
        self._catalog = Catalog()
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-registry-")
        self._plugins = _written(plugins, Path(self._folder.name))
        for path in self._plugins:
            self._catalog.load_file(path)
        self._processes: dict[str, AheadProcess] = {}

    def compile(
        self, described: DescribedDevice, op: str, dims: Mapping[str, Any], implementations: Sequence[str]
    ) -> AheadReport:
        """Compile what a problem needs and no other actor has begun."""
        import ray

        count, left = 0, dict[str, None]()
        problem = self._catalog.op(op).problem_of(dict(dims))
        unlike = differing(conditions(described.gpu), described.conditions)
        for ahead in variants_ahead(problem, self._catalog, described.device, implementations):
            if ahead.by_inductor and unlike:
                left[f"torch.compile is left to {described.device.name}: other {', '.join(unlike)}"] = None
                continue
            if not ray.get(self._shelf.claim.remote(key_of(ahead, described))):
                continue
            made = self._made(ahead, described)
            if made.fault:
                left[f"{ahead.implementation.name} of {op} is left to {described.device.name}: {made.fault}"] = None
            shared = [(path, digest_of(content), ray.put(content)) for path, content in made.files.items()]
            if shared:
                group = described.model if ahead.by_inductor else described.device.architecture
                ray.get(self._shelf.add.remote(group, shared))
                count += 1
        return AheadReport(count, tuple(left))

    def _made(self, ahead: AheadVariant, described: DescribedDevice) -> AheadFiles:
        if not ahead.by_inductor:
            return AheadFiles(compile_ahead(ahead, described.device))
        if described.model not in self._processes:
            self._processes[described.model] = AheadProcess(described.gpu, self._plugins)
        return self._processes[described.model].compile(ahead, described.device.target)


@dataclass
class ArtifactShelf:
    """What was compiled, by group of devices: the files' digests and where the object store has their content."""

    claimed: set[str] = field(default_factory=set)
    files: dict[tuple[str, str], SharedFile] = field(default_factory=dict)

    def claim(self, key: str) -> bool:
        """True for the first process that asks for a variant, which then compiles it."""
        if key in self.claimed:
            return False
        self.claimed.add(key)
        return True

    def add(self, group: str, shared: Sequence[SharedFile]) -> None:
        """Offer files to the devices of a group; of files with one path the first stays."""
        for one in shared:
            self.files.setdefault((group, one[0]), one)

    def since(self, groups: Sequence[str], count: int) -> tuple[list[SharedFile], int]:
        """The files for these groups after the first ``count`` of all, and the number of all."""
        new = list(self.files.items())[count:]
        return [one for (group, _), one in new if group in groups], len(self.files)


def device_there(name: str) -> DescribedDevice:
    """The device of that name on a node; read by a process of its own.

    A process that has asked for a GPU stays on it, which a measurement would count as a disturbance. Ray hides all GPUs
    from a task that needs none, such as this.
    """
    visible = {name: value for name, value in os.environ.items() if (name, value) != ("CUDA_VISIBLE_DEVICES", "")}
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE, name], capture_output=True, text=True, check=True, timeout=120, env=visible
    )
    return DescribedDevice.from_json(done.stdout.splitlines()[-1])


_DESCRIBE = """
import sys
from registry.fleet.on_ray.described_device import DescribedDevice
print(DescribedDevice.here(sys.argv[1]).as_json())
"""


def _written(plugins: Mapping[str, str], folder: Path) -> list[Path]:
    for name, content in plugins.items():
        (folder / Path(name).name).write_text(content)
    return [folder / Path(name).name for name in plugins]
