"""torch.compile as a backend: plain torch code, compiled by Inductor for exactly one problem."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import sys
import types
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...artifact import Artifact, Built, Signature, Target, Variant
from ...device import Device
from ...errors import CompileError
from ...implementation import Implementation, Run, Tensors
from ...paths import cache_folder
from ...problem import Problem, TensorSpec, canonical_json, dtype_name, torch_dtype
from ...space import Config
from .. import compiler_environment
from . import artifact as inductor_artifact
from . import sizes as inductor_sizes

_LOG = logging.getLogger(__name__)


class InductorImplementation(Implementation):
    """An implementation by torch code, ``function``, that Inductor compiles for each tuned problem.

    Shapes are static (``dynamic=False``) and the graph is whole (``fullgraph=True``); for problems that were not tuned
    sizes may vary (``bind_untuned``). ``compile`` works without data, so that another process can do it in advance: for
    a CPU anywhere, for a GPU where that GPU is visible or ``absent_gpu`` stands for it. ``bind`` compiles if
    ``compile`` could not.
    """

    device_types: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    returns_outputs = True
    compiles_anywhere: ClassVar[bool] = False
    preloads: ClassVar[tuple[str, ...]] = (*inductor_artifact.MODULES, "registry.backends.inductor.warm:warm")

    @abstractmethod
    def function(self, *values: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Plain torch code over the schema's values in order; it must not depend on anything else."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """The reason if Inductor lacks a compiler or a device. An override begins with ``super()``'s reasons."""
        if device.type == "cpu" and not _cpp_compiler():
            yield "Inductor needs a C++ compiler (g++, or what CXX names)"
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            yield "Inductor needs Triton, which is not installed"
        if problem.traits.lists:
            yield "it takes tensors and numbers by name, no lists"

    def preference(self, problem: Problem, device: Device) -> float:
        """Below torch's own op, since the first call takes seconds to compile."""
        return -10.0

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant: specs and values of the arguments, torch's version, and a CPU kernel's number of threads."""
        spec = {
            "arguments": [_plain(value) for value in signature.arguments.values.values()],
            "device": str(device.torch),
            "threads": torch.get_num_threads() if device.type == "cpu" else 0,
            "torch": torch.__version__,
        }
        kernel = f"{type(self).__module__}.{type(self).__qualname__}"
        return (Variant("inductor", kernel, spec, self.fingerprint()),)

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """A file in the user's cache folder ``inductor``, or nothing where this process cannot compile for the target.

        Raises CompileError with Inductor's first lines.
        """
        file = _file(variant, target)
        if file.exists():
            return Artifact(variant, str(file))
        if not _visible(target) or not inductor_artifact.available():
            return Artifact(variant)
        function, tensors = _specialised(self.function, variant)
        try:
            saved = inductor_artifact.compile_to_file(function, tensors, variant.spec["threads"], file)
        except Exception as fault:  # Inductor raises whatever its parts raise; all of it means: does not compile
            raise CompileError(f"{self.name}: {_first_lines(fault)}") from fault
        return Artifact(variant, str(file) if saved else "")

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the compiled code, or compile it; a call with another value of an attribute (an eps) compiles again."""
        (artifact,) = built.artifacts
        values = list(built.signature.arguments.values.values())
        tensors = [place for place, value in enumerate(values) if isinstance(value, TensorSpec)]
        attributes = [place for place in range(len(values)) if place not in tensors]
        single = len(built.signature.outputs) == 1
        given = tuple(values[place] for place in attributes)
        compiled = {given: self._compiled(artifact, device.target)}

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Any:
            attribute_values = tuple([arguments[place] for place in attributes])
            function = compiled.get(attribute_values)
            if function is None:
                other = Artifact(_with_attributes(artifact.variant, attribute_values))
                function = compiled[attribute_values] = self._compiled(other, device.target)
            returned = function(*[arguments[place] for place in tensors])
            if isinstance(returned, torch.Tensor):
                return returned
            return returned[0] if single else tuple(returned)

        return run

    def bind_untuned(
        self, problem: Problem, config: Config, device: Device, signature: Signature, family: Hashable
    ) -> Run | None:
        """A run for all problems of the family, by code compiled once for varying sizes at the first call."""
        (variant,) = self.variants(problem, config, device, signature)
        if _file(variant, device.target).exists():
            return None
        kind = variant.kernel, variant.source, variant.spec["device"], variant.spec["threads"]
        return inductor_sizes.bind(self.function, (kind, family), signature)

    def sources(self) -> Iterable[types.ModuleType | str]:
        """The class's modules, and the modules of this backend that compile."""
        return (*super().sources(), sys.modules[__name__], sys.modules[inductor_artifact.__name__])

    def compiler_environment(self) -> Mapping[str, str]:
        """Environment variables that Inductor, Triton and the C++ compiler obey."""
        return compiler_environment.inductor()

    def _compiled(self, artifact: Artifact, target: Target) -> Callable[..., Any]:
        variant = artifact.variant
        path = artifact.path or self.compile(variant, target).path
        if path:
            try:
                return inductor_artifact.load_file(Path(path))
            except Exception as fault:  # a private format, perhaps of another build of torch
                _LOG.debug("%s: %s cannot be loaded, compiling again: %s", self.name, path, fault)
                Path(path).unlink(missing_ok=True)
        function, _ = _specialised(self.function, variant)
        compiled: Callable[..., Any] = torch.compile(inductor_sizes.fresh(function), fullgraph=True, dynamic=False)
        return compiled


def _plain(value: object) -> object:
    if not isinstance(value, TensorSpec):
        return {"value": value}
    return {"shape": list(value.shape), "strides": list(value.strides), "dtype": dtype_name(value.dtype)}


def _with_attributes(variant: Variant, values: tuple[object, ...]) -> Variant:
    """The variant with other values of its attributes."""
    given = iter(values)
    arguments = [{"value": next(given)} if "value" in argument else argument for argument in variant.spec["arguments"]]
    return replace(variant, spec={**variant.spec, "arguments": arguments})


def _spec(argument: Mapping[str, Any], device: torch.device) -> TensorSpec:
    shape, strides = tuple(argument["shape"]), tuple(argument["strides"])
    return TensorSpec(shape, torch_dtype(argument["dtype"]), strides, device)


def _specialised(function: Callable[..., Any], variant: Variant) -> tuple[Callable[..., Any], list[TensorSpec]]:
    """``function`` with all values but its tensors bound, and the specs of these tensors."""
    arguments: list[Mapping[str, Any]] = list(variant.spec["arguments"])
    device = torch.device(variant.spec["device"])

    def of_tensors(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return function(*[argument["value"] if "value" in argument else next(given) for argument in arguments])

    return of_tensors, [_spec(argument, device) for argument in arguments if "value" not in argument]


def _file(variant: Variant, target: Target) -> Path:
    text = canonical_json([variant.key, target.backend, target.architecture])
    return cache_folder("inductor") / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.bin"


def _visible(target: Target) -> bool:
    """True if code for ``target`` can be generated here: Inductor asks the GPU itself for its properties."""
    if target.backend == "cpu":
        return True
    return torch.cuda.is_available() and Device.of("cuda").architecture == target.architecture


def _cpp_compiler() -> str | None:
    default = "clang++" if sys.platform == "darwin" else "g++"
    return _found(os.environ.get("CXX", default), os.environ.get("PATH"))


@lru_cache(maxsize=16)
def _found(command: str, path: str | None) -> str | None:
    """``shutil.which``, cached: it takes 100 µs, and every new size of an op asks."""
    return shutil.which(command, path=path)


def _first_lines(fault: Exception) -> str:
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return f"{type(fault).__name__}: {' / '.join(lines[:3])}"
