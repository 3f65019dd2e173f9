"""C++ and CUDA functions over torch tensors, pasted as source text and built by ``torch.utils.cpp_extension``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...artifact import Artifact, Built, Signature, Target, Variant
from ...device import Device
from ...errors import CacheError, CompileError, InvalidDefinitionError
from ...implementation import Implementation, Run, Tensors
from ...paths import cache_folder
from ...problem import Problem, canonical_json
from ...space import Config
from .. import compiler_environment
from ..cpp.compiler import content_digest, is_intact
from .implementation import architecture_of
from .nvrtc import first_errors, macro

_MARKS = (" error", "cannot find", "undefined reference", "undefined symbol")


class InlineImplementation(Implementation):
    """An implementation by one C++ function over ``torch::Tensor``; it may launch CUDA kernels.

    cpp_source    C++ text: the function, or only its declaration when ``cuda_source`` defines it
    cuda_source   CUDA text ("": C++ only, no nvcc needed)
    function      the function's name; it is called with the schema's values in order, or with ``arguments``
    returns_outputs  True: it returns the outputs. False: it takes the outputs first and writes into them
    flags, cuda_flags  for the C++ compiler and for nvcc

    The function must work on the current stream (``c10::cuda::getCurrentCUDAStream()``). A build takes about 16 s
    for C++ and a minute with CUDA; what needs no C++ on the host is better off as a CudaImplementation.
    Override ``unsupported`` with ``yield from super().unsupported(problem, device)`` first.
    """

    cpp_source: str
    cuda_source: str = ""
    function: str
    returns_outputs = True
    flags: Sequence[str] = ("-O3",)
    cuda_flags: Sequence[str] = ("-O3",)

    def constants(self, problem: Problem, config: Config, device: Device) -> Mapping[str, Any]:
        """Macros (``-D``) of the build; the config unless overridden."""
        return config

    def arguments(self, signature: Signature) -> tuple[str, ...]:
        """Names of the function's arguments, in order: the outputs if it writes into them, then the schema's values."""
        outputs = () if self.returns_outputs else tuple(signature.outputs)
        return (*outputs, *signature.arguments.values, *signature.scratch, *signature.prepared)

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Every reason why the implementation cannot run: here each missing tool that a build needs."""
        return missing(with_cuda=bool(self.cuda_source))

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant: the sources with their flags, macros and the versions that a built module depends on."""
        constants = self.constants(problem, config, device)
        spec = {
            "cuda": self.cuda_source,
            "defines": [f"-D{name}={macro(name, value)}" for name, value in constants.items()],
            "flags": list(self.flags),
            "cuda_flags": list(self.cuda_flags) if self.cuda_source else [],
            "torch": torch.__version__,
            "python": sys.implementation.cache_tag,
        }
        return (Variant("inline", self.function, spec, self.cpp_source),)

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """Build into the user's cache unless it is there. Raises CompileError with the compiler's first errors."""
        return Artifact(variant, str(built_module(variant, target)))

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the module and resolve its function's arguments."""
        (artifact,) = built.artifacts
        function = getattr(load_module(artifact.path), self.function)
        known, names = built.signature.operands, self.arguments(built.signature)
        for name in names:
            if name not in known:
                told = f"{self.name}: arguments() names {name!r}"
                raise InvalidDefinitionError(told, hint=f"known: {', '.join(known)}")
        places = [known[name][:2] for name in names]

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            groups = {"outputs": outputs, "arguments": arguments, "scratch": scratch}
            returned = function(*[groups[group][place] for group, place in places])
            return tuple(returned) if isinstance(returned, list) else returned

        if device.type != "cuda":
            return run

        def run_there(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            with torch.cuda.device(device.index):
                return run(outputs, arguments, scratch)

        return run_there

    def compiler_environment(self) -> Mapping[str, str]:
        return compiler_environment.nvcc()

    def sources(self) -> Iterable[ModuleType | str]:
        yield from super().sources()
        yield self.cpp_source
        yield self.cuda_source


def load_inline(
    op: str,
    name: str,
    *,
    cpp_source: str,
    cuda_source: str = "",
    function: str,
    returns_outputs: bool = True,
    device_types: Iterable[str] = ("cuda",),
    flags: Sequence[str] = ("-O3",),
) -> InlineImplementation:
    """An implementation of ``op`` from pasted source, to register or to return from a hook; see InlineImplementation.

    It accepts contiguous tensors only. Write a subclass for a space, limits or other arguments.
    """
    declared = {"op": op, "name": name, "function": function, "cpp_source": cpp_source, "cuda_source": cuda_source}
    options = {
        "returns_outputs": returns_outputs,
        "device_types": frozenset({device_types} if isinstance(device_types, str) else device_types),
    }
    return _Pasted({**declared, **options, "flags": tuple(flags)})


class _Pasted(InlineImplementation):
    """The implementation that ``load_inline`` returns; its instance holds what a subclass would declare."""

    def __init__(self, declared: Mapping[str, Any]) -> None:
        vars(self).update(declared)

    def sources(self) -> Iterable[ModuleType | str]:
        return (sys.modules[__name__], self.cpp_source, self.cuda_source)

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if not problem.traits["contiguous"]:
            yield "tensors are not contiguous"
        yield from super().unsupported(problem, device)


def missing(with_cuda: bool) -> list[str]:
    """Every tool that a build needs and this machine lacks, as the text of a reason."""
    from torch.utils import cpp_extension

    return list(_missing(with_cuda, cpp_extension.CUDA_HOME, *map(os.environ.get, ("PATH", "CXX"))))


@lru_cache(maxsize=16)
def _missing(with_cuda: bool, home: str | None, *_environment: str | None) -> tuple[str, ...]:
    """``missing``, cached: torch runs ninja to find it, which takes 3 ms."""
    from torch.utils import cpp_extension

    reasons = []
    if not cpp_extension.is_ninja_available():
        reasons.append("ninja is not installed (pip install ninja)")
    if not shutil.which(cpp_extension.get_cxx_compiler()):
        reasons.append(f"no C++ compiler ({cpp_extension.get_cxx_compiler()} is not on the PATH; set CXX)")
    if with_cuda and (home is None or not (Path(home) / "bin" / "nvcc").is_file()):
        reasons.append("nvcc is not installed (install the CUDA toolkit and set CUDA_HOME)")
    return tuple(reasons)


def compiler_versions(with_cuda: bool) -> list[str]:
    """The version that the C++ compiler prints and, ``with_cuda``, nvcc's."""
    from torch.utils import cpp_extension

    commands = [tuple(shlex.split(cpp_extension.get_cxx_compiler()))]
    if with_cuda:
        commands.append((str(Path(str(cpp_extension.CUDA_HOME)) / "bin" / "nvcc"),))
    return [_version_text(command) for command in commands]


@lru_cache(maxsize=8)
def _version_text(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as fault:
        raise CompileError(f"{shlex.join(command)} --version failed: {fault}") from fault


def built_module(variant: Variant, target: Target) -> Path:
    """The extension module of a variant in the user's cache, built now when it is not there.

    Keyed by the variant, the architecture, the compilers' versions and the environment that they obey; the file's name
    ends in a digest of its content. The build happens in a folder of its own and is renamed into place, so that neither
    a killed build nor one in another process can leave half a module or a lock behind.
    """
    architecture = target.architecture if variant.spec["cuda"] else ""
    if reasons := missing(bool(variant.spec["cuda"])):
        raise CompileError(f"{variant.kernel}: {'; '.join(reasons)}")
    versions = compiler_versions(with_cuda=bool(variant.spec["cuda"]))
    identity = [variant.key, architecture, versions, *sorted(compiler_environment.nvcc().items())]
    key = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
    folder = cache_folder("inline")
    for found in sorted(folder.glob(f"{key}-*.so")):
        if is_intact(found):
            return found
        found.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as build:
        module = _build(variant, target, f"inline_{key[:16]}", build)
        # torch appends _v1 to a name that it has built before in this process; the name is needed to import the file
        library = Path(str(module.__file__))
        path = folder / f"{key}-{module.__name__}-{content_digest(library)}.so"
        library.replace(path)
    return path


def _build(variant: Variant, target: Target, name: str, folder: str) -> ModuleType:
    from torch.utils import cpp_extension

    spec = variant.spec
    architecture = architecture_of(target)
    code = architecture.removeprefix("sm_")
    cuda_flags = [*spec["cuda_flags"], *spec["defines"], f"-gencode=arch=compute_{code},code={architecture}"]
    try:
        with warnings.catch_warnings():
            # torch warns of minor version differences between nvcc and itself, which do not matter if the build works
            warnings.simplefilter("ignore")
            module: ModuleType = cpp_extension.load_inline(
                name=name,
                cpp_sources=[variant.source],
                cuda_sources=[spec["cuda"]] if spec["cuda"] else None,
                functions=[variant.kernel],
                extra_cflags=[*spec["flags"], *spec["defines"]],
                extra_cuda_cflags=cuda_flags if spec["cuda"] else None,
                build_directory=folder,
                with_cuda=bool(spec["cuda"]),
            )
    except (RuntimeError, OSError, ImportError) as fault:
        raise CompileError(f"the build of {variant.kernel} failed:\n  {first_errors(str(fault), _MARKS)}") from fault
    return module


@cache
def load_module(path: str) -> ModuleType:
    """The built module at ``path``, loaded once in this process and never unloaded."""
    if not is_intact(Path(path)):
        raise CacheError(f"{path} is gone or damaged", hint="run again: it will be built anew")
    name = Path(path).stem.split("-")[1]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CompileError(f"{path} is no extension module")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as fault:
        raise CompileError(f"{path} cannot be loaded: {fault}", hint="remove the file; it is built again") from None
    return module
