"""Plain classes of which ``cluster`` makes actors: a worker on a GPU, a compiler, the shelf of artifacts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .artifact_files import digest_of, install, missing

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


class AheadCompiler:
    """Compiles variants that workers will need; ``shelf`` is the handle of the ArtifactShelf actor."""

    def __init__(self, shelf: Any, plugins: Mapping[str, str]) -> None:
        from ...discovery.catalog import Catalog

        self._shelf = shelf
        self._catalog = Catalog()
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-registry-")
        for path in _written(plugins, Path(self._folder.name)):
            self._catalog.load_file(path)

    def compile(
        self, device: Mapping[str, Any], op: str, dims: Mapping[str, Any], implementations: Sequence[str]
    ) -> int:
        """Compile what a problem needs and no other actor has begun; returns the number of variants."""
        import ray

        from ...device import Device
        from .compiling_ahead import compile_ahead, key_of, variants_ahead

        target, count = Device(**device), 0
        problem = self._catalog.op(op).problem_of(dict(dims))
        for ahead in variants_ahead(problem, self._catalog, target, implementations):
            if not ray.get(self._shelf.claim.remote(key_of(ahead, target))):
                continue
            files = compile_ahead(ahead, target)
            shared = [(path, digest_of(content), ray.put(content)) for path, content in files.items()]
            if shared:
                ray.get(self._shelf.add.remote(target.architecture, shared))
                count += 1
        return count


@dataclass
class ArtifactShelf:
    """What was compiled, by architecture: the files' digests and where the object store has their content."""

    claimed: set[str] = field(default_factory=set)
    files: dict[str, dict[str, SharedFile]] = field(default_factory=dict)

    def claim(self, key: str) -> bool:
        """True for the first who asks for a variant: that one compiles it."""
        if key in self.claimed:
            return False
        self.claimed.add(key)
        return True

    def add(self, architecture: str, shared: Sequence[SharedFile]) -> None:
        """Offer files; of files with one path the first stays."""
        known = self.files.setdefault(architecture, {})
        for one in shared:
            known.setdefault(one[0], one)

    def since(self, architecture: str, count: int) -> list[SharedFile]:
        """The files for an architecture after the first ``count``."""
        return list(self.files.get(architecture, {}).values())[count:]


def device_there(name: str) -> dict[str, Any]:
    """The device of that name on a node, as the fields of ``Device``; read by a process of its own.

    A process that has asked for a GPU stays on it, which a measurement would count as a disturbance. Ray hides all GPUs
    from a task that needs none, such as this.
    """
    visible = {name: value for name, value in os.environ.items() if (name, value) != ("CUDA_VISIBLE_DEVICES", "")}
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE, name], capture_output=True, text=True, check=True, timeout=120, env=visible
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


_DESCRIBE = """
import dataclasses, json, sys
from registry.device import Device
print(json.dumps(dataclasses.asdict(Device.of(sys.argv[1]))))
"""


def _written(plugins: Mapping[str, str], folder: Path) -> list[Path]:
    for name, content in plugins.items():
        (folder / Path(name).name).write_text(content)
    return [folder / Path(name).name for name in plugins]
