"""From a problem file to an op: a file has cases, each with tensors of fixed shapes, and a reference."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ..contract import Floor, Op, Tolerance
from ..errors import InvalidArgumentError, InvalidDefinitionError
from ..problem import Arguments, Problem, Value, dtype_name
from .drawing import outputs_of, same_outputs
from .foreign_file import ForeignFile

RTOL = {"float64": 1e-9, "float32": 5e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
ATOL = {"float64": 1e-12, "float32": 1e-7, "float16": 1e-6, "bfloat16": 1e-6}
_PROBED_BYTES = 4 << 20
"""The largest inputs on which further kinds are tried when a problem is imported: that takes a second on a CPU."""
_FEW = 2
"""The size of a batch that larger inputs are cut to."""
_TRIED_SEED, _OTHER_SEED = 7, 8
KINDS = ("normal", "signed", "spike_last")
"""Kinds of inputs: as the file draws them; of both signs; with a large last element. The file's own come first."""

TensorShapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ProblemCase:
    """One problem of a file: its dimensions, and shapes and dtypes of its tensors and outputs."""

    dims: Mapping[str, Value]
    shapes: TensorShapes
    dtypes: tuple[torch.dtype, ...]
    template: Any = None
    """The data that the file's functions take, with slots for tensors."""


class ProblemFile(ABC):
    """What an importer knows about a problem file; ``op`` makes the contract of it."""

    def __init__(self, file: ForeignFile) -> None:
        self.file = file
        self._seen: list[tuple[torch.Tensor, ...]] = []
        """The outputs of the kinds of inputs that were tried."""
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
        return tuple(self._of_kind(kind, tensors, generator))

    def _of_kind(self, kind: str, tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
        count = len(self.names) - len(self.weights)
        changed = list(tensors)
        for place in range(count):
            one = changed[place]
            if kind == "normal" or not one.is_floating_point():
                continue
            if kind == "signed":
                drawn = torch.randn(one.shape, generator=generator, device=one.device)
                changed[place] = (2 * drawn).to(one.dtype)
            elif one.numel():
                changed[place] = one.clone()
                changed[place].view(-1)[-1] = 8.0
        return changed

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The file's own kind of inputs, and those of ``KINDS`` for which the reference is finite."""
        if not self.changes_inputs:
            return KINDS[:1]
        for tensors in self._tried():
            seen = {kind: self._finite_outputs(tensors, kind) for kind in KINDS}
            found = {kind: outputs for kind, outputs in seen.items() if outputs is not None}
            if KINDS[0] in found:
                self._seen = [*found.values()]
                return tuple(found)
        return KINDS[:1]

    def _is_constant(self) -> bool:
        """Whether the reference has returned the same for other inputs; large ones are not drawn anew for it."""
        seen, case = list(self._seen), self.cases[0]
        if len(seen) < 2 and _nbytes(case) <= _PROBED_BYTES:
            draws = [self.draw(case, torch.Generator("cpu").manual_seed(seed)) for seed in (_TRIED_SEED, _OTHER_SEED)]
            if not all(torch.equal(one, other) for one, other in zip(*draws, strict=True)):
                seen = [outputs for one in draws if (outputs := self._finite_outputs(one, KINDS[0])) is not None]
        return len(seen) > 1 and all(same_outputs(seen[0], other) for other in seen[1:])

    def _tried(self) -> Iterator[list[torch.Tensor]]:
        """Tensors on the CPU to try kinds on: a case's own if they are small, else with cut batches."""
        case, generator = self.cases[0], torch.Generator("cpu").manual_seed(_TRIED_SEED)
        count = len(self.names) - len(self.weights)
        if _nbytes(case) <= _PROBED_BYTES:
            yield self.draw(case, generator)
            return
        if not all(one.is_floating_point for one in case.dtypes[:count]):
            return
        batch = case.shapes[0][:1]
        every = [(_FEW, *shape[1:]) if batch and shape[:1] == batch else shape for shape in case.shapes[:count]]
        for shapes in (every, [every[0], *case.shapes[1:count]]):
            if 4 * sum(map(math.prod, shapes)) <= _PROBED_BYTES:
                drawn = [torch.rand(shape, generator=generator) for shape in shapes]
                yield [*(one.to(dtype) for one, dtype in zip(drawn, case.dtypes, strict=False)), *self.drawn_weights()]

    def drawn_weights(self) -> list[torch.Tensor]:
        """The weights of a case on the CPU."""
        return []

    def _finite_outputs(self, tensors: Sequence[torch.Tensor], kind: str) -> tuple[torch.Tensor, ...] | None:
        """The reference's outputs for inputs of a kind, None if it refuses them, or is not finite."""
        generator = torch.Generator("cpu").manual_seed(_TRIED_SEED)
        try:
            found = outputs_of(self.run(self.cases[0], self._of_kind(kind, tensors, generator)), self.file.path.name)
        except Exception:  # a reference may refuse inputs outside of its domain
            return None
        is_finite = all(bool(one.isfinite().all()) for one in found if one.is_floating_point())
        # a reference may write into a buffer of its own
        return tuple(one.clone() for one in found) if is_finite else None

    def floor(self, problem: Problem) -> Floor:
        """Bytes of the tensors and outputs. A reference does not tell its FLOP."""
        case = self.case_of(problem.dims)
        out = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.output_specs(case, case.dtypes))
        return Floor(_nbytes(case) + out, 0)

    def op(self, name: str) -> Op:
        """The contract. Raises InvalidDefinitionError for a file that has none."""
        if not self.names:
            raise InvalidDefinitionError(f"{self.file.path}: its inputs hold no tensor")
        first, kinds = self.cases[0], self.kinds
        if self._is_constant():
            raise InvalidDefinitionError(
                f"{self.file.path}: the right result is the same whatever the inputs are",
                hint="whoever returned it without computing anything would be right, and win",
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


def _nbytes(case: ProblemCase) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(case.shapes, case.dtypes, strict=True))


def _shown(dims: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={value}" for name, value in dims.items())


def _shapes(shapes: TensorShapes) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
