"""Implementations written in Triton: the author gives launches as data; they are compiled, loaded and run here."""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, cast

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from ...artifact import Artifact, Built, Signature, Target, Variant
from ...author_code import where_defined, where_written
from ...device import Device
from ...errors import CompileError, DeviceError, InvalidDefinitionError, OutOfResourcesError, RegistryError
from ...implementation import Implementation, Launch, Run, by_form
from ...paths import cache_folder
from ...problem import Problem
from ...source_files import sources_of
from ...space import Config
from .. import compiler_environment
from ..estimate import shared_limit
from ..kernel_limit import check_room
from ..launch_checks import launches_for, refuse_empty
from ..launch_forms import Forms, form_key, launch_key
from ..misaligned_run import MisalignedRun, compiled_run
from ..programmatic_launch import OPTION, waits
from ..written_run import WrittenRun
from . import cubin
from . import stored as triton_stored
from .bound_launch import BoundLaunch, full_grid, interpreted_run
from .launch import DeviceForm, load
from .stored import build_launcher, kernel_from, path_of
from .variant import (
    INTERPRETED,
    check_options,
    find_kernel,
    gpu_target,
    number_form,
    operands,
    source_of,
    variant_of,
)

_AMD_RESOURCES = {"registers": r"\.vgpr_count:\s+(\d+)", "spill_bytes": r"\.private_segment_fixed_size:\s+(\d+)"}


class TritonImplementation(Implementation):
    """An implementation whose work is one or several Triton kernels.

    Write ``launch``; variants, compiling and launching follow from it. A tensor is passed as a pointer of its dtype, an
    integer as i32 (i64 beyond its range), a float as fp32. Tensors and integers that are multiples of 16 are compiled
    as such, unless the kernel lists the parameter in ``do_not_specialize``: do so for every number that depends on a
    dynamic dimension. Under ``TRITON_INTERPRET=1`` the kernels run on CPU tensors.
    """

    preloads: ClassVar[tuple[str, ...]] = (f"{__name__}:build_utilities",)

    device_types: ClassVar[frozenset[str]] = frozenset({"cuda", "cpu"}) if INTERPRETED else frozenset({"cuda"})

    @abstractmethod
    def launch(self, problem: Problem, config: Config, device: Device) -> Launch | Sequence[Launch]:
        """The kernel launches that run the problem, in order, as data."""

    def launches(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
        """``launch`` as a tuple. Raises DeviceError for a CPU outside the interpreter."""
        if device.type != "cuda" and not INTERPRETED:
            raise DeviceError(f"{self.name} of {self.op}: {device} runs Triton under TRITON_INTERPRET=1 alone")
        return launches_for(self, problem, config, device)

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant per launch; none in the interpreter, which compiles nothing."""
        if INTERPRETED:
            return ()
        return tuple(variant_of(launch, signature, device.target) for launch in self.launches(problem, config, device))

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """Compile for a target, whose GPU is not needed; the result is in Triton's cache on disk.

        Raises OutOfResourcesError when a program needs more shared memory than the target has, CompileError for all
        other faults of the compiler.
        """
        kernel = _compiled(variant, target)
        if variant.spec["options"].get(OPTION) and not waits(kernel.asm.get("ptx", "")):
            raise CompileError(
                f"{variant.kernel} is launched with {OPTION}, and never waits for the kernel ahead of it",
                hint="call tl.extra.cuda.gdc_wait() before the first load and the first store",
            )
        resources = _resources(kernel)
        limit = shared_limit(target.architecture)
        if limit is not None and resources["shared_bytes"] > limit:
            raise OutOfResourcesError(
                f"{variant.kernel} needs {resources['shared_bytes']} bytes of shared memory,"
                f" {target.architecture} has {limit}",
                hint="smaller blocks or fewer num_stages need less",
            )
        with own_cache():
            build_launcher(kernel)
        return Artifact(variant, path_of(kernel), resources)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the compiled kernels and return the function that launches them.

        Raises OutOfResourcesError for a grid or a kernel that the device cannot run.
        """
        launches = self.launches(problem, config, device)
        bound = self._bound(launches, device, built)
        if INTERPRETED:
            return interpreted_run(bound)
        form = DeviceForm.of(launches, bound, device.index)
        _FORMS.put(_form_key(launches, built.signature, device), form)
        return form.run(launches, partial(self._twin, problem, config, device, built.signature))

    @by_form
    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for other extents and numbers, of kernels that are loaded."""
        if INTERPRETED:
            return None
        launches = self.launches(problem, config, device)
        # no bound methods, which would be two more objects for each new size
        make_launches, make_twin = TritonImplementation._launches_again, TritonImplementation._twin
        given = self, problem, config, device, signature
        # most sizes differ from ``like`` in extents and numbers alone
        if type(like) is WrittenRun and (numbers := like.form.numbers(launches)) is not None:
            return WrittenRun(like.form, numbers, make_launches, make_twin, given)
        return _FORMS.run(_form_key(launches, signature, device), launches, make_launches, make_twin, given)

    def compiler_environment(self) -> Mapping[str, str]:
        return compiler_environment.triton()

    def _launches_again(self, problem: Problem, config: Config, device: Device, _: Signature) -> tuple[Launch, ...]:
        """The launches of a run, which does not keep them."""
        return self.launches(problem, config, device)

    def _twin(self, problem: Problem, config: Config, device: Device, signature: Signature) -> Run:
        """The run whose kernels do not assume that tensors are aligned."""
        return MisalignedRun(self.name, lambda: compiled_run(self, problem, config, device, signature.misaligned()))

    def _bound(self, launches: Sequence[Launch], device: Device, built: Built) -> list[BoundLaunch]:
        title = f"{self.name} of {self.op}"
        refuse_empty(launches, built.signature)
        if INTERPRETED:
            for launch in launches:
                check_options(launch)
            return [_bound(launch, None, built.signature, title) for launch in launches]
        if len(built.artifacts) != len(launches):
            raise InvalidDefinitionError(f"{title}: {len(built.artifacts)} artifacts for {len(launches)} launches")
        return [
            _bound(launch, _load(artifact, device), built.signature, title)
            for launch, artifact in zip(launches, built.artifacts, strict=True)
        ]


_FORMS: Forms[DeviceForm] = Forms()


def _form_key(launches: Sequence[Launch], signature: Signature, device: Device) -> Hashable:
    keys = []
    for launch in launches:
        kernel, constants = launch.kernel, launch.constants
        free = [name for name in kernel.arg_names if name not in constants]
        keys.append(launch_key(launch, lambda place, value: number_form(kernel, free[place], value)))  # noqa: B023
    return form_key(keys, signature, device.index)


def _bound(launch: Launch, compiled: Any, signature: Signature, title: str) -> BoundLaunch:
    options = {name: value for name, value in launch.options.items() if compiled and name not in launch.constants}
    return BoundLaunch(launch.kernel, compiled, full_grid(launch.grid, title), operands(launch, signature), options)


def warm() -> None:
    """Make Triton hash its own source (0.4 s), which it does once per process before it first compiles or loads."""
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("triton.runtime.cache").triton_key()


def build_utilities() -> None:
    """Make Triton build the C extension with which it loads kernels; its cache on disk keeps the result."""
    with own_cache():
        triton_stored.build_utilities()


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """A context in which Triton's disk cache is in this package's folder.

    Inductor sets TRITON_CACHE_DIR in a process that uses it, so that processes would not find each other's kernels.
    """
    with _COMPILING, triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(cache_folder("triton"))
        yield


def _compiled(variant: Variant, target: Target) -> Any:
    try:
        with own_cache(), compiler_environment.tritons_own_assembler():
            return triton.compile(source_of(variant), target=gpu_target(target), options=dict(variant.spec["options"]))
    except RegistryError:
        raise
    except Exception as fault:
        # the compiler's passes and the kernel's static asserts may raise anything
        raise _refusal(variant, target, fault) from fault


def _refusal(variant: Variant, target: Target, fault: Exception) -> CompileError:
    place, reason = _place_and_reason(variant, fault)
    message = f"{place}: {variant.kernel} for {target.architecture}: {type(fault).__name__}: {reason}"
    exhausted = isinstance(fault, OutOfResources) or re.search(r"too much shared data|out of resource", str(fault))
    return OutOfResourcesError(message) if exhausted else CompileError(message)


def _place_and_reason(variant: Variant, fault: BaseException) -> tuple[str, str]:
    """The place in the author's code that the compiler refuses, ``"kernels.py:12"``, and the reason on one line.

    Triton wraps a fault once for each function that it passes through, with the source text of each.
    """
    kernel = find_kernel(variant.kernel)
    modules = [module for module in sources_of(kernel.fn) if isinstance(module, ModuleType)]
    place, reason, inner = "", _in_a_line(str(fault)), cast("BaseException | None", fault)
    while inner is not None:
        if isinstance(inner, CompilationError):
            line = getattr(inner.node, "lineno", 0)
            place = where_written(inner.src or "", line, modules) or place
            shown = (inner.src or "").splitlines()[line - 1 : line]
            reason = " | ".join([_in_a_line(inner.error_message or ""), *map(str.strip, shown)])
        else:
            reason = f"{_in_a_line(str(inner))} | {reason.rpartition(' | ')[2]}" if place else _in_a_line(str(inner))
        inner = inner.__cause__
    return place or where_defined(kernel), reason


def _in_a_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:600]


def _resources(kernel: Any) -> dict[str, int]:
    metadata = kernel.metadata
    found = {
        "shared_bytes": int(metadata.shared),
        "threads": int(metadata.num_warps) * int(metadata.target.warp_size),
    }
    if "cubin" in kernel.asm:
        return found | cubin.resources(kernel.asm["cubin"])
    for name, pattern in _AMD_RESOURCES.items():
        if match := re.search(pattern, kernel.asm.get("amdgcn", "")):
            found[name] = int(match.group(1))
    return found


_COMPILING = threading.RLock()
_LOADED: dict[tuple[str, int], Any] = {}
_LOADING = threading.Lock()


def _load(artifact: Artifact, device: Device) -> Any:
    """The kernel loaded on the device, once per process.

    It stays loaded until the process ends: a captured CUDA graph may use it after its plan was dropped, and from
    Triton 3.8 on a collected kernel unloads its module. Raises OutOfResourcesError if too many are loaded already.
    """
    variant = artifact.variant
    place = (variant.key, device.index)
    with _LOADING:
        if place not in _LOADED:
            check_room(len(_LOADED), "Triton")
            kernel = artifact.path and kernel_from(artifact.path, source_of(variant))
            kernel = kernel or _compiled(variant, device.target)
            try:
                with torch.cuda.device(device.index), own_cache():
                    load(kernel)
            except OutOfResources as fault:
                raise _refusal(variant, device.target, fault) from fault
            _LOADED[place] = kernel
        return _LOADED[place]
