"""C++ kernels for the CPU: implementations that give source text and launches as data."""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ...artifact import Artifact, Built, RunItem, Signature, Target, Variant
from ...device import Device
from ...errors import CompileError, InvalidDefinitionError, MisnamedError
from ...implementation import Implementation, Launch, Run, by_form, own_classes
from ...problem import Problem, TensorSpec
from ...source_files import kernel_texts
from ...space import Config
from .. import compiler_environment
from ..kernel_signature import check_kernel
from ..launch_checks import argument_of, launches_for, macro_values, placed, refuse_empty
from ..launch_forms import Forms, form_key, launch_key
from ..launch_numbers import numbers_of
from ..written_run import Operands, WrittenForm, WrittenRun
from .compiler import NoCompiler, build, find_compiler, load

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_FORMATS = {"p": "Q", "i": "q", "d": "d"}


@dataclass(frozen=True)
class CppKernel:
    """C++17 source text and the name of the ``void`` function in it that a launch calls.

    The function declares ordinary parameters, in the order of the launch's ``args``: a pointer for a tensor (null for
    an optional one that is not given), any integer type for an int or bool (passed as int64), ``float`` or ``double``
    for a float (passed as double). A mismatch is a compile error that says so. The text sees ``registry::parallel``
    and ``registry::share`` (preamble.hpp), the launch's constants as macros, and must not throw.
    """

    source: str
    name: str

    @classmethod
    def read(cls, name: str, *files: Path) -> CppKernel:
        """The kernel ``name`` in the text of ``files``, one after another."""
        return cls("\n".join(file.read_text() for file in files), name)


class CppImplementation(Implementation):
    """An implementation that launches C++ kernels: ``launch`` names them, the host compiles and calls them.

    ``Launch.kernel`` is a CppKernel; ``constants`` become macros (a str is used as it stands); ``options`` may
    hold ``flags``, a sequence of more compiler flags. ``grid`` is ignored: pass the number of threads as an argument,
    so that one variant serves every number. An override of ``unsupported`` begins with ``super().unsupported``.
    """

    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    capturable = False

    @abstractmethod
    def launch(self, problem: Problem, config: Config, device: Device) -> Launch | Sequence[Launch]:
        """The kernel launches, in order, that run the problem with this configuration."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        compiler = find_compiler()
        if isinstance(compiler, NoCompiler):
            yield compiler.reason

    def launches(self, problem: Problem, config: Config, device: Device) -> tuple[Launch, ...]:
        """The launches of a problem with a configuration, in order."""
        return launches_for(self, problem, config, device)

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant per launch: the source, the macros, the flags and the kinds of the arguments."""
        return tuple(self._variant(launch, signature) for launch in self.launches(problem, config, device))

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """A shared library in the user's cache folder ``cpp``. Raises CompileError."""
        try:
            return Artifact(variant, str(build(_translation_unit(variant), variant.spec["flags"], variant.kernel)))
        except CompileError as fault:
            raise placed(fault, self, variant.source, f"{variant.kernel}.cpp") from fault.__cause__

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the libraries; the run packs addresses and numbers into bytes that one C pointer refers to."""
        launches = self.launches(problem, config, device)
        refuse_empty(launches, built.signature)
        form = _Form(launches, built)
        _FORMS.put(form_key(map(launch_key, launches), built.signature, 0), form)
        return form.run(launches)

    @by_form
    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for other numbers, of libraries that are loaded."""
        launches = self.launches(problem, config, device)
        # most sizes differ from ``like`` in numbers alone
        if type(like) is WrittenRun and (numbers := like.form.numbers(launches)) is not None:
            return WrittenRun(like.form, numbers)
        return _FORMS.run(form_key(map(launch_key, launches), signature, 0), launches)

    def sources(self) -> Iterable[ModuleType | str]:
        """The class's modules, the preamble, and the text of every kernel in an attribute of these or the class."""
        yield from super().sources()
        yield _preamble()
        yield from kernel_texts(*own_classes(self))

    def compiler_environment(self) -> Mapping[str, str]:
        return compiler_environment.host_compiler()

    def _variant(self, launch: Launch, signature: Signature) -> Variant:
        kernel = launch.kernel
        if not isinstance(kernel, CppKernel):
            raise launch.fault(f"the kernel is a {type(kernel).__name__}", "expected CppKernel(source, name)")
        check_kernel(self, launch, signature, "C++")
        for name in sorted(launch.options.keys() - {"flags"}):
            raise MisnamedError("option", name, ["flags"], f"in the Launch at {launch.place} of {self.name}")
        spec = {
            "defines": {name: self._define(name, value) for name, value in macro_values(launch).items()},
            "flags": [str(flag) for flag in launch.options.get("flags", ())],
            "arguments": "".join(self._kind(launch, argument, signature) for argument in launch.args),
        }
        return Variant("cpp", kernel.name, spec, kernel.source)

    def _define(self, name: str, value: object) -> str:
        if not _IDENTIFIER.match(name):
            raise InvalidDefinitionError(f"{self.name}: the constant {name!r} is no C++ identifier")
        return str(int(value)) if isinstance(value, bool) else str(value)

    def _kind(self, launch: Launch, argument: object, signature: Signature) -> str:
        value: object = argument
        if isinstance(argument, str):
            value = argument_of(launch, lambda: f"kernel {launch.kernel.name}", argument, signature).value
        if value is None or isinstance(value, TensorSpec):
            return "p"
        if isinstance(value, int):
            return "i"
        if isinstance(value, float):
            return "d"
        hint = "expected the name of a tensor, as text, or a number"
        raise launch.fault(f"argument {argument!r} is a {type(value).__name__}", hint)


@lru_cache(maxsize=1)
def _preamble() -> str:
    return Path(__file__).with_name("preamble.hpp").read_text()


def _translation_unit(variant: Variant) -> str:
    """Preamble, macros, kernel, entry. The macros come after the preamble, so that they do not change it."""
    kernel, spec = variant.kernel, variant.spec
    macros = "\n".join(f"#define {name} {value}" for name, value in sorted(spec["defines"].items()))
    entry = f"REGISTRY_ENTRY({', '.join([kernel, *(repr(kind) for kind in spec['arguments'])])}"
    entry += ")" if spec["arguments"] else ", )"
    return f'{_preamble()}\n{macros}\n#line 1 "{kernel}.cpp"\n{variant.source}\n#line 1 "{kernel}.launch"\n{entry}\n'


class _Form(WrittenForm):
    """Launches without their numbers, of loaded functions.

    Measured with six arguments on a 2-core machine: one pointer to packed bytes takes 0.19 us, the same call through
    ctypes ``argtypes`` 0.48 us. Each call makes new bytes, so that threads do not share them.
    """

    def __init__(self, launches: Sequence[Launch], built: Built) -> None:
        """Load the libraries."""
        self.names: dict[str, Any] = {}
        for place, artifact in enumerate(built.artifacts):
            entry = load(artifact.path).registry_entry
            entry.restype = None
            kinds = artifact.variant.spec["arguments"]
            self.names[f"k_entry_{place}"] = entry
            self.names[f"k_pack_{place}"] = struct.Struct("=" + "".join(_FORMATS[kind] for kind in kinds)).pack
        known = built.signature.operands
        self.arguments = [
            [known[argument] if isinstance(argument, str) else None for argument in launch.args] for launch in launches
        ]
        texts = {
            f"k_number_{place}_{number}": f"a{place}_{number}"
            for place, args in enumerate(self.arguments)
            for number, one in enumerate(args)
            if one is None
        }
        self.sized = texts.keys()
        self.numbers = numbers_of(launches, texts.values())

    def lines(self, operands: Operands) -> list[str]:
        """The calls in order."""
        return [
            f"k_entry_{place}(k_pack_{place}({', '.join(self._values(place, given, operands))}))"
            for place, given in enumerate(self.arguments)
        ]

    def _values(self, place: int, given: Sequence[RunItem | None], operands: Operands) -> Iterator[str]:
        for number, operand in enumerate(given):
            if operand is None:
                yield f"k_number_{place}_{number}"
            elif operand.value is None:
                yield "0"
            elif not isinstance(operand.value, TensorSpec):
                yield operands.at(operand.group, operand.place)
            elif 0 in operand.value.shape:
                yield f"{operands.at(operand.group, operand.place)}.data_ptr()"
            else:
                yield operands.address(operand.group, operand.place)


_FORMS: Forms[_Form] = Forms()
