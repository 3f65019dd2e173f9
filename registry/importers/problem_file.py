"""From a problem file to an op: a file has cases, each with tensors of fixed shapes, and a reference."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..contract import Floor, Op, Tolerance
from ..errors import InvalidArgumentError, InvalidDefinitionError
from ..problem import Arguments, Problem, Value, dtype_name
from .drawing import outputs_of
from .foreign_file import ForeignFile
from .kinds_of_inputs import TriedKinds, of_kind

RTOL = {"float64": 1e-9, "float32": 5e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
ATOL = {"float64": 1e-12, "float32": 1e-7, "float16": 1e-6, "bfloat16": 1e-6}
TensorShapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ProblemCase:
    """One problem of a file: its dimensions, and shapes and dtypes of its tensors and outputs."""

    dims: Mapping[str, Value]
    shapes: TensorShapes
    dtypes: tuple[torch.dtype, ...]
    template: Any = None
    """The data that the file's functions take, with slots for tensors."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


class ProblemFile(ABC):
    """What an importer knows about a problem file; ``op`` makes the contract of it."""

    def __init__(self, file: ForeignFile) -> None:
        self.file = file
        self._tried = TriedKinds(self)
        self._outputs: dict[
            tuple[TensorShapes, tuple[torch.dtype, ...]], list[tuple[tuple[int, ...], torch.dtype]]
        ] = {}

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders from which the file, and its submissions, may import modules, its own first."""
        return self.file.path.parent, self.file.path.parent.parent

    @property
    @abstractmethod
    def cases(self) -> Sequence[ProblemCase]:
        """The problems of the file."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The tensors' names, inputs first, then weights."""

    @property
    def weights(self) -> Sequence[str]:
        """Names of the tensors that stay from call to call."""
        return ()

    @property
    def inputs(self) -> int:
        """The number of tensors that are no weights; these come first."""
        return len(self.names) - len(self.weights)

    @property
    def distributions(self) -> Mapping[str, tuple[str, ...]]:
        """Dimensions that change the data and no shape, with their values as text."""
        return {}

    @abstractmethod
    def draw(self, case: ProblemCase, generator: torch.Generator) -> list[torch.Tensor]:
        """Tensors of a case on the generator's device."""

    @abstractmethod
    def run(self, case: ProblemCase, tensors: Sequence[torch.Tensor]) -> Any:
        """The reference on these tensors, which it may not change."""

    @property
    def changes_inputs(self) -> bool:
        """Whether other kinds of inputs than the file's own may be tried."""
        return True

    def case_of(self, dims: Mapping[str, Value]) -> ProblemCase:
        """The case of these dimensions. Raises InvalidArgumentError with those that there are."""
        for case in self.cases:
            if dict(case.dims) == dict(dims):
                return case
        there = "; ".join(_shown(case.dims) for case in self.cases[:4])
        raise InvalidArgumentError(
            f"{self.file.path.name} has no problem {_shown(dims)}", hint=f"it has {len(self.cases)}: {there}"
        )

    def check(self, problem: Problem) -> None:
        """Raises InvalidArgumentError for dimensions that are no case of the file."""
        self.case_of(problem.dims)

    def case_like(self, tensors: Sequence[Any]) -> ProblemCase:
        """The case whose tensors have these shapes. Raises InvalidArgumentError."""
        shapes = tuple(tuple(one.shape) for one in tensors)
        alike = [case for case in self.cases if case.shapes == shapes]
        dtypes = tuple(one.dtype for one in tensors)
        for case in alike:
            if case.dtypes == dtypes:
                return case
        if not alike:
            raise InvalidArgumentError(
                f"{self.file.path.name} has no problem of the shapes {_shapes(shapes)}",
                hint=f"it has {', '.join(dict.fromkeys(_shapes(case.shapes) for case in self.cases[:4]))}",
            )
        return alike[0]

    def reference(self, *tensors: torch.Tensor) -> Any:
        """The outputs, by the file's own reference."""
        returned = outputs_of(self.run(self.case_like(tensors), tensors), self.file.path.name)
        # the schema's outputs are new memory
        made = tuple(_owned(one, tensors) for one in returned)
        return made[0] if len(made) == 1 else made

    @abstractmethod
    def reference_caller(self, problem: Problem, device: torch.device) -> Callable[..., Any]:
        """The reference as it is timed: called as submissions are, without what finds the case of each call."""

    def fake(self, *tensors: torch.Tensor) -> Any:
        """Row-major outputs of the right shapes and dtypes."""
        specs = self.output_specs(self.case_like(tensors), tuple(one.dtype for one in tensors))
        made = tuple(torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in specs)
        return made[0] if len(made) == 1 else made

    def output_specs(
        self, case: ProblemCase, dtypes: tuple[torch.dtype, ...]
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output, from the reference on meta tensors, or else on the CPU."""
        key = case.shapes, dtypes
        if key not in self._outputs:
            try:
                metas = [
                    torch.empty(shape, dtype=dtype, device="meta")
                    for shape, dtype in zip(case.shapes, dtypes, strict=True)
                ]
                found = outputs_of(self.run(case, metas), self.file.path.name)
            except Exception:  # a reference may look at data, which meta tensors lack
                drawn = self.draw(case, torch.Generator("cpu").manual_seed(0))
                tensors = [one.to(dtype) for one, dtype in zip(drawn, dtypes, strict=True)]
                found = outputs_of(self.run(case, tensors), self.file.path.name)
            self._outputs[key] = [(tuple(one.shape), one.dtype) for one in found]
        return self._outputs[key]

    def drawn(self, problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Inputs of one kind."""
        tensors = self.draw(self.case_of(problem.dims), generator)
        return tuple(of_kind(kind, tensors, self.inputs, generator))

    def drawn_weights(self) -> list[torch.Tensor]:
        """The weights of a case on the CPU."""
        return []

    def floor(self, problem: Problem) -> Floor:
        """Bytes of the tensors and outputs. A reference does not tell its FLOP."""
        case = self.case_of(problem.dims)
        out = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.output_specs(case, case.dtypes))
        return Floor(case.nbytes + out, 0)

    def op(self, name: str) -> Op:
        """The contract. Raises InvalidDefinitionError for a file that has none."""
        if not self.names:
            raise InvalidDefinitionError(f"{self.file.path}: its inputs hold no tensor")
        first, kinds = self.cases[0], self._tried.kinds
        if self._tried.is_constant():
            raise InvalidDefinitionError(
                f"{self.file.path}: the right result is the same whatever the inputs are",
                hint="a submission that returns it without computing anything would be right, and win",
            )
        outputs = [f"out{place}" for place in range(len(self.output_specs(first, first.dtypes)))]
        arguments = ", ".join(f"Tensor {one}" for one in self.names)
        results = ", ".join(f"Tensor {one}" for one in outputs)
        return Op(
            name=name,
            schema=f"{name}({arguments}) -> {results if len(outputs) == 1 else f'({results})'}",
            version=self.file.version,
            reference=self.reference,
            fake=self.fake,
            problem=partial(_posed, self),
            inputs=self.drawn,
            kinds=kinds,
            check=self.check,
            floor=self.floor,
            tolerance=Tolerance(RTOL, ATOL, magnitude_of_rows),
            static=frozenset(first.dims),
            dynamic=frozenset(),
            weights=frozenset(self.weights),
            distributions=self.distributions,
            baseline=f"{name.partition('::')[0]}.reference",
        )


def _posed(file: ProblemFile, arguments: Arguments) -> Mapping[str, Value]:
    case = file.case_like([arguments.tensors[name] for name in file.names])
    for name, dtype, wanted in zip(
        file.names, (arguments.tensors[one].dtype for one in file.names), case.dtypes, strict=True
    ):
        if dtype != wanted:
            raise InvalidArgumentError(
                f"{file.file.path.name}: {name} is {dtype_name(dtype)}, expected {dtype_name(wanted)}"
            )
    return case.dims


def _owned(output: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    held = {one.untyped_storage()._cdata for one in tensors}
    output = output.contiguous()
    return output.clone() if output.untyped_storage()._cdata in held else output


def magnitude_of_rows(_problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Magnitude of an element, and of its row: errors of a sum are relative to what was added."""
    size = reference.abs()
    return size + (size.mean(dim=-1, keepdim=True) if size.dim() else 0)


def _shown(dims: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in dims.items())


def _shapes(shapes: TensorShapes) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
