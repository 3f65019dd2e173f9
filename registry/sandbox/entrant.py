"""An implementation that is going to run in a sandbox: its name, and the files that it is made of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ..device import Device
from ..discovery.catalog import Catalog
from ..discovery.hooks import PROJECT
from ..implementation import Implementation
from ..space import Config
from ..tuner.measure import nvml
from .bubblewrap import SandboxView
from .limits import SandboxLimits
from .mounts import gpu_nodes, interpreter_paths, package_paths, read_only, site_folders, system_mounts

_FOLDER = "/sandbox"
_PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "OMP_NUM_THREADS", "TORCHINDUCTOR_VEC_ISA_OK", "CXX", "CC")
"""Variables of this process that say where compilers and libraries are, and how they run."""


@dataclass(frozen=True)
class SandboxedEntrant:
    """An implementation by name, of an installed plugin or of a plugin file.

    plugin      the file's path on this machine, None if it is installed
    allowed     names of the installed plugins that are loaded with it
    files       what the plugin file refers to, shown read-only at the same places
    search      folders that Python also looks for modules in
    packages    packages of the installed plugin
    config      None: the implementation's default
    variables   of the environment, beside those that every sandbox has
    """

    op: str
    name: str
    plugin: Path | None = None
    allowed: Sequence[str] = ()
    files: Sequence[Path] = ()
    search: Sequence[Path] = ()
    packages: Sequence[str] = ()
    config: Config | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def installed(cls, implementation: Implementation, catalog: Catalog, config: Config | None) -> SandboxedEntrant:
        """The entrant that an installed implementation is."""
        op, name = implementation.op, implementation.name
        owner = next((one.name for one in catalog.plugins() if f"{op}/{name}" in one.implementations), "none")
        package = type(implementation).__module__.partition(".")[0]
        return cls(op, name, allowed=[owner], packages=[package], config=config)

    def view(self, device: Device, limits: SandboxLimits) -> SandboxView:
        """The files, devices and limits of the entrant's sandbox."""
        is_gpu = device.type == "cuda"
        shown = system_mounts(is_gpu=is_gpu)
        homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
        if is_gpu:
            homes += map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
        there = [each for each in (*homes, *_compilers()) if each.is_dir()]
        ours = [*interpreter_paths(), *site_folders(), *package_paths(self.packages)]
        shown += read_only([*ours, *there, *self.files])
        if self.plugin is not None:
            shown += ["--ro-bind", str(self.plugin), self.plugin_inside]
        devices = gpu_nodes(_node_of(device)) if is_gpu else []
        return SandboxView(shown, devices, limits.temporary_bytes)

    def environment(self, device: Device) -> dict[str, str]:
        """The environment variables of the entrant's process."""
        places = [*(each.parent for each in package_paths(self.packages)), *site_folders(), *self.search]
        folders = dict.fromkeys(map(str, places))
        found = {
            "PATH": "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp/home",
            "TMPDIR": "/tmp",
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KERNEL_REGISTRY_CACHE": "/tmp/cache",
            "KERNEL_REGISTRY_DB": "/tmp/tuning.db",
            "KERNEL_REGISTRY_SHIPPED": "0",
            "KERNEL_REGISTRY_BLOCK": ",".join(sorted(_installed() - set(self.allowed))),
            "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
            "TRITON_CACHE_DIR": "/tmp/triton",
            "CUDA_CACHE_PATH": "/tmp/cuda",
        }
        found |= {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
        if device.type == "cuda":
            found["CUDA_VISIBLE_DEVICES"] = _visible_as(device)
        return {**found, **self.variables}

    @property
    def plugin_inside(self) -> str:
        """The path of the plugin file in the sandbox, "" without one."""
        return f"{_FOLDER}/{self.plugin.name}" if self.plugin is not None else ""


def _compilers() -> Iterator[Path]:
    """Folders of the compilers that ``CC`` and ``CXX`` name by a path: where ``bin`` is, and where links lead to."""
    for name in ("CC", "CXX"):
        program = Path(os.environ.get(name, "").partition(" ")[0])
        if program.is_absolute():
            for each in (program, program.resolve()):
                yield each.parent.parent if each.parent.name == "bin" else each.parent


def _installed() -> set[str]:
    """Names of all installed plugins: those that an entrant does not need are not imported beside it."""
    return {one.name for one in metadata.entry_points(group=PROJECT)}


def _node_of(device: Device) -> int | None:
    """The number of a GPU's device node, None where the driver does not tell it."""
    gpu = nvml.gpu_of(device)
    return None if gpu is None or device.mig else gpu.node_number()


def _visible_as(device: Device) -> str:
    """The GPU, as ``CUDA_VISIBLE_DEVICES`` names it, so that a sandbox finds it as its only one."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if device.mig and device.index < len(given) and given[device.index]:
        return given[device.index].strip()
    return f"GPU-{nvml.identity_of(device)}"
