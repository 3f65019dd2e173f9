"""CUDA C++ kernels as source text: compiled by NVRTC without a GPU, launched through the driver."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from types import ModuleType
from typing import ClassVar

from ...artifact import Artifact, Built, Signature, Target, Variant
from ...device import Device
from ...errors import CacheError, CompileError, MisnamedError, NotLaunchedError, OutOfResourcesError, UnsupportedError
from ...implementation import Implementation, Launch, Run, by_form, own_classes
from ...problem import Problem
from ...source_files import kernel_texts
from ...space import Config
from .. import estimate
from ..kernel_signature import check_kernel
from ..launch_checks import launches_for, macro_values, placed, refuse_empty
from ..launch_forms import Forms, form_key, launch_key
from ..misaligned_run import MisalignedRun, compiled_run
from ..programmatic_launch import OPTION, launches_dependents, waits
from ..written_run import WrittenRun
from . import launch as cuda_launch
from . import nvrtc
from .frame import block_of

_OPTIONS = frozenset({"block", "maxrregcount", "use_fast_math", "std", OPTION})
_OF_LAUNCH = frozenset({"block", OPTION})
"""Options that no compiler reads."""
_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT = 1024
_CLUSTER_LIMIT = 16
_REGISTER_FILE = 65536
_SHARED_ELSEWHERE = 99 * 1024
# "sm_90a" has instructions that later chips lack (wgmma, setmaxnreg); a cubin is for one architecture anyway
_SPECIFIC = frozenset({"sm_90", "sm_100", "sm_103", "sm_120", "sm_121"})


@dataclass(frozen=True)
class CudaKernel:
    """A kernel in CUDA C++: ``source`` is the whole text, ``name`` a ``__global__`` function or template instantiation.

    Names: ``"softmax_row"``, ``"softmax_row<float, 4>"``. The text may include ``cuda_fp16.h``, ``cuda_bf16.h``,
    ``cooperative_groups.h`` and CCCL.
    """

    source: str
    name: str

    def __str__(self) -> str:
        return self.name


def read_source(package: str, *files: str) -> str:
    """The text of ``.cu`` and ``.cuh`` files shipped inside ``package``, in order; errors name file and line."""
    folder = resources.files(package)
    return "\n".join(f'#line 1 "{file}"\n{folder.joinpath(file).read_text()}' for file in files)


class CudaImplementation(Implementation):
    """An implementation by CUDA C++ kernels: the author writes ``launch`` and, where there is a choice, ``space``.

    The fields of ``Launch``:

    kernel     a CudaKernel
    grid       thread blocks, up to three extents (also with ``cluster``: blocks, not clusters)
    args       in the order of the kernel's parameters: a tensor's name is a pointer, an int a ``long long``, a float
               a ``float``, a bool a ``bool``; an optional tensor that is absent is a null pointer
    constants  macros (``-D``): block size, vector width, ``{"ELEMENT": "__half"}``; bool as 1 or 0, float with an f
               behind. Headers see them too: a macro named ``T`` breaks them
    options    ``block`` (threads, an int or up to three extents; required), ``maxrregcount``, ``use_fast_math``,
               ``std``, ``launch_pdl`` (programmatic dependent launch, see ``registry.backends.programmatic_launch``;
               launches on tensors that are not aligned stay in the stream's order)
    cluster    thread blocks of a cluster, from compute capability 9.0 on
    shared_bytes  dynamic shared memory

    Capability 9.0 is compiled as sm_90a (10.x and 12.x likewise), so that wgmma and setmaxnreg can be used.

    If ``problem.traits["aligned"]`` is True, every tensor starts at a multiple of 16 bytes. For a later call where one
    does not, the run calls a twin, made from ``launch`` with ``aligned=False`` and the same config.

    ``source`` is kernel text from outside of the class's module (see ``read_source``); it is part of the fingerprint.
    Override ``unsupported`` with ``yield from super().unsupported(problem, device)`` first.
    """

    preloads: ClassVar[tuple[str, ...]] = ("registry.backends.cuda.nvrtc:import_core",)

    source: str = ""
    max_spill_bytes: int = 4096
    """Per thread; a variant that spills more is refused, since it cannot be fast."""

    @abstractmethod
    def launch(self, problem: Problem, config: Config, device: Device) -> Launch | Sequence[Launch]:
        """The kernel launch, or several in order."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Every reason why no CUDA implementation can run on the device: no NVIDIA GPU, no NVRTC."""
        if device.type != "cuda" or device.target.backend != "cuda":
            yield f"{device.name} is no NVIDIA GPU"
        if reason := nvrtc.missing():
            yield reason

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant per launch, without the grid and the values of arguments."""
        return tuple(self._variant(launch, signature) for launch in self._launches(problem, config, device))

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """NVRTC's cubin in the user's cache. ``resources``: registers, shared_bytes, spill_bytes, threads."""
        spec = variant.spec
        source = nvrtc.Source(
            variant.source, variant.kernel, spec["constants"], architecture_of(target), spec["options"]
        )
        try:
            cubin = nvrtc.compile_source(source)
        except CompileError as fault:
            raise placed(fault, self, variant.source, source.unit) from fault.__cause__
        resources = dict(cubin.resources)
        resources["shared_bytes"] = resources.get("shared_bytes", 0) + spec["shared_bytes"]
        resources["threads"] = math.prod(spec["block"])
        _check_resources(variant, target, resources, self.max_spill_bytes)
        return Artifact(variant, str(cubin.path), resources)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        launches = self._launches(problem, config, device)
        kernels = self._kernels(launches, device, built)
        aligned = problem.traits["aligned"]
        form = cuda_launch.LaunchForm(kernels, launches, built.signature, device.index, guarded=aligned)
        _FORMS.put(_form_key(launches, built.signature, device, aligned), form)
        return form.run(launches, partial(self._twin, problem, config, device, built.signature) if aligned else None)

    @by_form
    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for other extents and numbers, of kernels that are loaded."""
        launches, aligned = self._launches(problem, config, device), problem.traits["aligned"]
        for launch in launches:
            _check_launch(self.name, launch, device)
        # no bound method, which would be one more object for each new size
        make_twin, given = (
            (CudaImplementation._twin, (self, problem, config, device, signature)) if aligned else (None, ())
        )
        # most sizes differ from ``like`` in extents and numbers alone
        if type(like) is WrittenRun and aligned is getattr(like.form, "guarded", None):
            numbers = like.form.numbers(launches)
            if numbers is not None:
                return WrittenRun(like.form, numbers, None, make_twin, given)
        return _FORMS.run(_form_key(launches, signature, device, aligned), launches, None, make_twin, given)

    def _twin(self, problem: Problem, config: Config, device: Device, signature: Signature) -> Run:
        """The run for tensors that are not aligned, made at its first call."""
        return MisalignedRun(self.name, lambda: self._misaligned(problem.misaligned(), config, device, signature))

    def _misaligned(self, problem: Problem, config: Config, device: Device, signature: Signature) -> Run:
        told = f"{self.name}: tensors are not 16-byte aligned"
        if reasons := list(self.unsupported(problem, device)):
            raise NotLaunchedError(f"{told}: {'; '.join(reasons)}")
        try:
            return compiled_run(self, problem, config, device, signature)
        except CompileError as fault:
            raise NotLaunchedError(f"{told}, and {fault.message}", hint=fault.hint) from fault

    def _kernels(self, launches: Sequence[Launch], device: Device, built: Built) -> list[cuda_launch.Kernel]:
        refuse_empty(launches, built.signature)
        kernels = []
        for launch, artifact in zip(launches, built.artifacts, strict=True):
            _check_launch(self.name, launch, device)
            kernel = self._load(artifact, device)
            cuda_launch.check_arguments(kernel, launch, built.signature)
            cuda_launch.allow(kernel, launch, device.index)
            kernels.append(kernel)
        return kernels

    def sources(self) -> Iterable[ModuleType | str]:
        """The class's modules, ``source``, and the text of every kernel held by an attribute of these or the class."""
        yield from super().sources()
        if self.source:
            yield self.source
        yield from (text for text in kernel_texts(*own_classes(self)) if text != self.source)

    def _launches(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
        return launches_for(self, problem, config, device)

    def _variant(self, launch: Launch, signature: Signature) -> Variant:
        kernel, options = launch.kernel, dict(launch.options)
        if not isinstance(kernel, CudaKernel):
            raise launch.fault(f"the kernel is {kernel!r:.80}", "expected a CudaKernel")
        check_kernel(self, launch, signature, "CUDA")
        for name in sorted(options.keys() - _OPTIONS):
            raise MisnamedError("option", name, _OPTIONS, f"in the Launch at {launch.place} of {self.name}")
        block = list(block_of(launch))
        _check_dependent(launch, kernel)
        options = {name: value for name, value in options.items() if name not in _OF_LAUNCH}
        spec = {
            "constants": macro_values(launch),
            "options": options,
            "block": block,
            "cluster": list(launch.cluster),
            "shared_bytes": launch.shared_bytes,
        }
        return Variant("cuda", kernel.name, spec, kernel.source)

    def _load(self, artifact: Artifact, device: Device) -> cuda_launch.Kernel:
        kernel = cuda_launch.load(artifact.path, device.index)
        if kernel is None:
            # the cache was cleared or damaged in the meantime: compile again
            kernel = cuda_launch.load(self.compile(artifact.variant, device.target).path, device.index)
        if kernel is None:
            raise CacheError(f"{artifact.path} cannot be read back", hint="is the cache folder's disk full?")
        return kernel


def _form_key(launches: Sequence[Launch], signature: Signature, device: Device, aligned: bool) -> Hashable:
    return form_key(map(launch_key, launches), signature, device.index, aligned)


_FORMS: Forms[cuda_launch.LaunchForm] = Forms()


def architecture_of(target: Target) -> str:
    """The architecture that NVRTC compiles for: ``sm_90`` becomes ``sm_90a``."""
    name = target.architecture
    return f"{name}a" if name in _SPECIFIC else name


def shared_limit(target: Target) -> int:
    """Most shared bytes of one thread block, static and dynamic together."""
    return estimate.shared_limit(target.architecture.rstrip("af")) or _SHARED_ELSEWHERE


def _check_resources(variant: Variant, target: Target, found: dict[str, int], max_spill_bytes: int) -> None:
    threads, shared = found["threads"], found["shared_bytes"]
    registers = -(-found.get("registers", 0) // 8) * 8 * -(-threads // 32) * 32
    complaints = []
    if threads > _BLOCK_LIMIT:
        complaints.append(f"{threads} threads a block (limit {_BLOCK_LIMIT})")
    if shared > shared_limit(target):
        complaints.append(f"{shared} bytes of shared memory (limit {shared_limit(target)})")
    if registers > _REGISTER_FILE:
        complaints.append(f"{found['registers']} registers for each of {threads} threads (limit {_REGISTER_FILE})")
    if found.get("spill_bytes", 0) > max_spill_bytes:
        complaints.append(f"{found['spill_bytes']} bytes spilled a thread (limit {max_spill_bytes})")
    if complaints:
        raise OutOfResourcesError(f"{variant.kernel} for {target.architecture} needs {', '.join(complaints)}")


def _check_dependent(launch: Launch, kernel: CudaKernel) -> None:
    """Raise InvalidDefinitionError for an option ``launch_pdl`` that is no bool, or of a kernel that never waits."""
    dependent = launch.options.get(OPTION, False)
    if not isinstance(dependent, bool):
        raise launch.fault(f"kernel {kernel}: option {OPTION}={dependent!r:.80}", "expected True or False")
    if dependent and not waits(kernel.source):
        raise launch.fault(
            f"kernel {kernel} is launched with {OPTION}, and its text never waits for the kernel ahead of it",
            'let each thread run asm volatile("griddepcontrol.wait;" ::: "memory"); before it reads or writes tensors',
        )


def _check_launch(name: str, launch: Launch, device: Device) -> None:
    grid = x, y, z = (*launch.grid, 1, 1)[:3]
    if x > _GRID_LIMIT[0] or y > _GRID_LIMIT[1] or z > _GRID_LIMIT[2]:
        raise UnsupportedError(f"{name}: a grid of {launch.grid} blocks is beyond {_GRID_LIMIT}")
    if launch.options.get(OPTION) and not launches_dependents(device):
        raise UnsupportedError(
            f"{name}: option {OPTION} needs compute capability 9.0 and a driver for CUDA 12.3, and is asked for on"
            f" {device.name} {device.capability}",
            hint="ask for it where registry.backends.programmatic_launch.launches_dependents(device) is True",
        )
    if not launch.cluster:
        return
    cluster = (*launch.cluster, 1, 1)[:3]
    if device.capability < (9, 0):
        raise UnsupportedError(f"{name}: clusters need compute capability 9.0, {device.name} has {device.capability}")
    if math.prod(cluster) > _CLUSTER_LIMIT or any(size % extent for size, extent in zip(grid, cluster, strict=True)):
        raise UnsupportedError(
            f"{name}: cluster {launch.cluster} over a grid of {launch.grid}",
            hint=f"expected at most {_CLUSTER_LIMIT} blocks, each extent dividing the grid's",
        )
