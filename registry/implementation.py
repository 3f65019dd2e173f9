"""One way to run an op, and its launch as data."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, TypeVar

import torch

from .artifact import Artifact, Built, Signature, Target, Variant
from .author_code import shown
from .device import Device
from .errors import InvalidDefinitionError, WrongAnswerError
from .fingerprint import PythonText, fingerprint
from .problem import Problem, TensorSpec, Value
from .source_files import sources_of
from .space import Config, Space

_HERE = __name__.partition(".")[0]

_BindLoaded = TypeVar("_BindLoaded", bound=Callable[..., Any])

Tensors = tuple[torch.Tensor, ...]

Run = Callable[[Tensors, tuple[Any, ...], Tensors], Any]
"""``run(outputs, arguments, scratch)``: enqueue the work on the current stream of the arguments' device.

``arguments`` are the schema's values in order, followed by the prepared tensors in the order of ``prepared``.
Returns None, or the outputs when the implementation ``returns_outputs`` (``outputs`` is then empty).
"""


@dataclass(frozen=True, init=False)
class Launch:
    """One kernel launch as data, to be compiled in another process, shared between problems, and hashed.

    args      names of inputs, outputs, scratch or prepared tensors, or of number attributes; or literal numbers
    grid      a tuple of up to three ints, none negative
    constants compile-time constants of the kernel, by name
    options   the compiler's: num_warps, num_stages (Triton); a CUDA or C++ backend documents its own
    cluster, shared_bytes   CUDA only
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[str | int | float, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: tuple[int, ...] = ()
    shared_bytes: int = 0
    line: tuple[str, int] = field(default=("", 0), init=False, compare=False, repr=False)
    """File and line of the author's code that made the launch."""

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        args: tuple[str | int | float, ...],
        constants: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        cluster: tuple[int, ...] = (),
        shared_bytes: int = 0,
    ) -> None:
        frame = sys._getframe(1)
        # each new size of a call makes launches, and a frozen dataclass takes 6 times as long to set its fields
        own = self.__dict__
        own["kernel"] = kernel
        own["grid"] = grid
        own["args"] = args
        own["constants"] = constants = {} if constants is None else constants
        own["options"] = options = {} if options is None else options
        own["cluster"] = cluster
        own["shared_bytes"] = shared_bytes
        own["line"] = frame.f_code.co_filename, frame.f_lineno
        if type(grid) is not tuple or len(grid) > 3:
            self._check_grid()
        else:
            for extent in grid:
                if type(extent) is not int or extent < 0:
                    self._check_grid()
        # most launches are made of plain tuples and dicts: they need no slower look
        if type(args) is not tuple or type(constants) is not dict or type(options) is not dict:
            self._check_types()

    def _check_grid(self) -> None:
        if isinstance(self.grid, list):
            object.__setattr__(self, "grid", tuple(self.grid))
        if type(self.grid) is not tuple or not all(_is_extent(extent) for extent in self.grid) or len(self.grid) > 3:
            hint = "launch() computes it from problem and config" if callable(self.grid) else "e.g. (problem.rows,)"
            expected = "a tuple of up to three ints, none negative"
            raise self.fault(f"the grid is {self.grid!r:.80}, expected {expected}", hint)

    def _check_types(self) -> None:
        if not isinstance(self.args, tuple | list):
            example = f"({self.args!r:.40},)" if isinstance(self.args, str) else '("y", "x", problem.cols)'
            raise self.fault(f"args is {self.args!r:.80}, expected a tuple", f"e.g. {example}")
        for name, given in (("constants", self.constants), ("options", self.options)):
            if not isinstance(given, Mapping):
                raise self.fault(f"{name} is {given!r:.80}, expected a mapping of names to values")

    @property
    def place(self) -> str:
        """``"kernels.py:12"``: where the author's code makes the launch."""
        return shown(*self.line)

    def fault(self, text: str, hint: str = "") -> InvalidDefinitionError:
        """An error about the launch, which says where it is made."""
        return InvalidDefinitionError(f"Launch at {self.place}: {text}", hint=hint)


def _is_extent(given: Any) -> bool:
    if type(given) is int:
        return given >= 0
    return hasattr(given, "__index__") and not isinstance(given, bool)


class Implementation(ABC):
    """One way to run an op, from one plugin. Stateless: the same object serves every problem, device and thread.

    op              the op's name
    name            ``plugin.variant``, unique within the op: ``"acme.cluster"``
    device_types    torch device types it runs on
    deterministic   two runs give the same bits
    capturable      may be captured into a CUDA graph
    returns_outputs functional code: it returns new tensors instead of writing into the host's
    any_size        the run that ``bind`` returns serves every problem that differs in dynamic dimensions only: True for
                    torch's own operators, False for code that is compiled for a shape or remembers a size
    transfers       a time measured at one size is evidence for other sizes, since the same code runs there: False if
                    code is compiled or chosen for each size, e.g. where ``bind_untuned`` is overridden
    mixed           runs calls whose tensors differ in dtype where the op's inputs do not (``Op.alike``)
    added           values of dimensions, of those in ``Op.added``, that it runs: ``{"kv_dtype": ("int8",)}``
    preloads        ``module`` or ``module:function`` that a process imports (and calls) before it forks the processes
                    that compile and run implementations of this kind; it must start no thread and open no device
    compiles_anywhere    ``compile`` needs the target's name only, and no device of that kind
    """

    op: str
    name: str
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    deterministic: bool = True
    capturable: bool = True
    returns_outputs: bool = False
    any_size: bool = False
    transfers: bool = True
    mixed: bool = False
    added: Mapping[str, tuple[Value, ...]] = MappingProxyType({})
    preloads: ClassVar[tuple[str, ...]] = ()
    compiles_anywhere: ClassVar[bool] = True

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "bind_untuned" in vars(cls) and "transfers" not in vars(cls):
            cls.transfers = False

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        """Every reason, as text, why the problem cannot run on the device. The device type is checked before."""
        return ()

    def space(self, problem: Problem, device: Device) -> Space:
        """The tunable parameters; ``Space()``, one empty configuration, when there is nothing to tune."""
        return Space()

    def default(self, problem: Problem, device: Device) -> Config:
        """A configuration of the space that is decent without any tuning."""
        return self.space(problem, device).first()

    def preference(self, problem: Problem, device: Device) -> float:
        """The declared preference: where nothing is tuned the highest runs first. torch's own op has 0."""
        return -1.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """Temporary tensors that the host allocates for each call."""
        return {}

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        """The tensors that ``prepare`` derives once from weights: name -> names of the arguments it is made from.

        A tensor among these must be one of the op's ``weights``; any other tensor is an InvalidDefinitionError.
        """
        return {}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """Make a prepared tensor, e.g. a weight in a layout of its own.

        The host caches it while the source tensors live unchanged, and never calls this during capture. It sees a
        change by torch's version counter or by ``registry.weights_changed``; the new tensor is then copied into the
        memory of the old one, which a captured graph may read.
        """
        raise WrongAnswerError(
            f"{self.name}: prepared() names {name!r}, but there is no prepare() that makes it",
            hint="write prepare(self, name, values, problem, config), which returns the tensor of that name",
        )

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """The parameters that prepared tensors depend on: configs that agree in them share one copy. Default: all."""
        return config

    @property
    def prepared_by(self) -> object:
        """The object that owns the prepared tensors. Implementations of an op that return one object share copies.

        Their ``prepare`` makes equal tensors for equal names and equal ``prepared_config``. By default ``self``.
        """
        return self

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """The variants to compile before ``bind``: plain data, equal for all problems that can share them."""
        return ()

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """Compile one variant; needs no GPU. Raises CompileError or OutOfResourcesError."""
        return Artifact(variant)

    @abstractmethod
    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Load the artifacts and return the run, the function that the hot path calls. Compiles nothing."""

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        """The run for another size, of kernels that are loaded; None if one is not. Compiles and loads nothing.

        ``like`` is a run of this implementation and configuration, which probably differs in extents and numbers alone.
        For backends, not for implementations.
        """
        return None

    def bind_untuned(
        self, problem: Problem, config: Config, device: Device, signature: Signature, family: Hashable
    ) -> Run | None:
        """A run for a problem that was not tuned, for backends where a compilation for each size would delay the calls.

        None, the default, compiles and binds it like a tuned problem. ``family`` is equal for problems of the op that
        differ in dynamic dimensions only. The run may compile at a call, but raises NotReadyError during capture. For
        backends, not for implementations: the tuner verifies the run that ``bind`` returns.
        """
        return None

    def sources(self) -> Iterable[ModuleType | str]:
        """The sources that the fingerprint covers: modules (hashed as normalised syntax) and other text.

        Default: the modules of the class and of its base implementations, with every module of their package that they
        import.
        """
        return sources_of(*own_classes(self))

    def compiler_environment(self) -> Mapping[str, str]:
        """Environment variables that are set and change what ``compile`` makes, with their values. For backends."""
        return {}

    def fingerprint(self) -> str:
        """Hash of the sources: comments and blank lines, also in kernel text, do not change it; ``launch`` does.

        ``compiler_environment`` is part of it.
        """
        variables = sorted(self.compiler_environment().items())
        return fingerprint((*self.sources(), *([PythonText(repr(variables))] if variables else [])))

    @property
    def definition(self) -> tuple[str, str]:
        """Module and qualified name of the definition: equal for a class that was defined again, as in a notebook."""
        return type(self).__module__, type(self).__qualname__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.op}>"


def own_classes(implementation: Implementation) -> list[type[Implementation]]:
    """An implementation's class and its base implementations, without those of this package."""
    classes = [each for each in type(implementation).__mro__ if issubclass(each, Implementation)]
    return [each for each in classes if each.__module__.partition(".")[0] != _HERE]


def by_form(bind_loaded: _BindLoaded) -> _BindLoaded:
    """Mark a ``bind_loaded`` that reads nothing of a signature but what ``Signature.form`` covers.

    It may then get the signature of ``like``, whose sizes are others, and no signature is made for each new size.
    """
    bind_loaded.by_form = True  # type: ignore[attr-defined]
    return bind_loaded


def reads_form_alone(kind: type[Implementation]) -> bool:
    """True if ``bind_loaded`` of a class is marked by ``by_form``."""
    return getattr(kind.bind_loaded, "by_form", False)


@lru_cache(maxsize=1024)
def binds_loaded(kind: type[Implementation]) -> bool:
    """False if a derived class overrides ``bind``, ``variants`` or ``compile`` without ``bind_loaded``."""
    own = next(each for each in kind.__mro__ if "bind_loaded" in vars(each))
    others = (next(each for each in kind.__mro__ if name in vars(each)) for name in ("bind", "variants", "compile"))
    return own is not Implementation and all(issubclass(own, other) for other in others)
