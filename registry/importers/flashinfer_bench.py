"""FlashInfer-Bench's form: a definition, its workloads and solutions, as JSON, in both directions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..contract import Floor, Op, Tolerance
from ..errors import InvalidArgumentError, InvalidDefinitionError, RegistryError, UnsupportedError
from ..implementation import Implementation
from ..paths import cache_folder
from ..problem import Arguments, Problem, Value, torch_dtype
from .drawing import outputs_of
from .foreign_file import ForeignFile
from .problem_file import ATOL, RTOL, magnitude_of_rows
from .submission import Submission

VENDOR = "flashinfer_bench"
_SCALARS = {"int32": "int", "int64": "int", "bool": "bool"}
_PYTHON = frozenset({"python", "triton"})


def is_problem(file: ForeignFile) -> bool:
    """Whether a file is a definition."""
    return _keys(file) >= {"axes", "inputs", "outputs", "reference"}


def is_submission(file: ForeignFile) -> bool:
    """Whether a file is a solution."""
    return _keys(file) >= {"definition", "spec", "sources"}


def _keys(file: ForeignFile) -> frozenset[str]:
    if file.path.suffix != ".json":
        return frozenset()
    try:
        told = json.loads(file.text)
    except ValueError:
        return frozenset()
    return frozenset(told) if isinstance(told, dict) else frozenset()


class Definition:
    """A definition: its constant axes are static dimensions, its variable ones dynamic."""

    def __init__(self, file: ForeignFile) -> None:
        self.file = file
        self.told: dict[str, Any] = json.loads(file.text)
        if lacking := [part for part in ("inputs", "outputs") if not self.told.get(part)]:
            raise InvalidDefinitionError(
                f"{file.path}: the definition has no {' and no '.join(lacking)}", hint="expected each by its name"
            )
        with _of_the_form(file.path, "definition"):
            self._inputs: dict[str, dict[str, Any]] = dict(self.told["inputs"])
            axes: dict[str, dict[str, Any]] = dict(self.told["axes"])
            self._const = {name: int(one["value"]) for name, one in axes.items() if one["type"] == "const"}
            self._var = [name for name, one in axes.items() if one["type"] == "var"]
            for one in (*self._inputs.values(), *self.told["outputs"].values()):
                if one.get("shape") is not None:
                    torch_dtype(one["dtype"])
                if unknown := [axis for axis in one.get("shape") or () if axis not in axes]:
                    names = ", ".join(map(str, unknown))
                    raise InvalidDefinitionError(f"{file.path}: axes does not define {names}, which a shape names")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders from which the definition's reference may import modules."""
        return self.file.path.parent, self.file.path.parent.parent

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self._inputs)

    @property
    def variable_axes(self) -> list[str]:
        """Names of the axes that a workload tells."""
        return list(self._var)

    @cached_property
    def _run(self) -> Callable[..., Any]:
        return python_function({"reference.py": self.told["reference"]}, "reference.py::run")

    def op(self, name: str) -> Op:
        """The contract of the definition. Raises InvalidDefinitionError for what an op cannot express."""
        arguments = ", ".join(f"{_kind(one)} {each}" for each, one in self._inputs.items())
        outputs = ", ".join(f"Tensor {each}" for each in self.told["outputs"])
        many = len(self.told["outputs"]) > 1
        return Op(
            name=name, schema=f"{name}({arguments}) -> {f'({outputs})' if many else outputs}",
            version=self.file.version, reference=self._reference, fake=self._fake, problem=self._posed,
            inputs=self._draw, floor=self._floor, tolerance=Tolerance(RTOL, ATOL, magnitude_of_rows),
            static=frozenset(self._const), dynamic=frozenset(self._var), check=self._check,
            baseline=f"{name.partition('::')[0]}.reference",
        )  # fmt: skip

    def reference_caller(self, _problem: Problem, _device: torch.device) -> Callable[..., Any]:
        """The reference as it is timed."""
        return self._reference

    def problems(self, workloads: Sequence[Mapping[str, Any]]) -> list[dict[str, Value]]:
        """Dimensions of workloads, without duplicates. Raises InvalidDefinitionError for an axis that is not told."""
        found: list[dict[str, Value]] = []
        for one in workloads:
            if not isinstance(one, dict) or not isinstance(inside := one.get("workload", one), dict):
                raise InvalidDefinitionError(f"workload {one!r:.60}", hint='expected an object, with "axes"')
            if inside.get("definition", one.get("definition", self.told["name"])) != self.told["name"]:
                continue
            axes = inside.get("axes", {})
            if missing := [name for name in self._var if name not in axes]:
                raise InvalidDefinitionError(f"workload {inside.get('uuid', '')}: axes missing: {', '.join(missing)}")
            if odd := [name for name in self._var if type(axes[name]) is not int or axes[name] < 0]:
                raise InvalidDefinitionError(
                    f"workload {inside.get('uuid', '')}: {odd[0]} is {axes[odd[0]]!r:.60}",
                    hint="expected a whole number",
                )
            dims: dict[str, Value] = {**self._const, **{name: axes[name] for name in self._var}}
            if dims not in found:
                found.append(dims)
        return found

    def _check(self, problem: Problem) -> None:
        for name, value in self._const.items():
            if problem.dims[name] != value:
                raise InvalidArgumentError(f"{self.told['name']}: {name} is {problem.dims[name]}, expected {value}")

    def _posed(self, arguments: Arguments) -> Mapping[str, Value]:
        found: dict[str, int] = {}
        for name, told in self._inputs.items():
            if told.get("shape") is None:
                continue
            shape = arguments.tensors[name].shape
            if len(shape) != len(told["shape"]):
                raise InvalidArgumentError(f"{name} has the shape {list(shape)}, expected {told['shape']}")
            for axis, size in zip(told["shape"], shape, strict=True):
                wanted = self._const.get(axis, found.setdefault(axis, size))
                if wanted != size:
                    raise InvalidArgumentError(f"{name}: {axis} is {size}, expected {wanted}")
        if missing := [name for name in self._var if name not in found]:
            raise InvalidDefinitionError(f"{self.told['name']}: no input has the axis {', '.join(missing)}")
        return {**self._const, **{name: found[name] for name in self._var}}

    def _shape(self, told: Mapping[str, Any], dims: Mapping[str, Value]) -> list[int]:
        return [int(dims[axis]) for axis in told.get("shape") or ()]

    def _draw(self, problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        made: list[Any] = []
        for told in self._inputs.values():
            dtype, shape = torch_dtype(told["dtype"]), self._shape(told, problem.dims)
            if told.get("shape") is None:
                made.append({"int": 1, "bool": True}.get(_kind(told), 1.0))
            elif dtype.is_floating_point:
                drawn = torch.randn(shape, generator=generator, device=generator.device)
                made.append(drawn.to(dtype))
            else:
                drawn = torch.randint(0, 2, shape, generator=generator, device=generator.device)
                made.append(drawn.to(dtype))
        return tuple(made)

    def _reference(self, *values: Any) -> Any:
        returned = self._run(*values)
        if isinstance(returned, dict):
            returned = [returned[name] for name in self.told["outputs"]]
        found = outputs_of(returned, f"reference of {self.told['name']}")
        return found[0] if len(found) == 1 else found

    def _dims(self, values: Sequence[Any]) -> dict[str, Value]:
        dims: dict[str, Value] = dict(self._const)
        for value, told in zip(values, self._inputs.values(), strict=True):
            dims.update(zip(told.get("shape") or (), getattr(value, "shape", ()), strict=False))
        return dims

    def _fake(self, *values: Any) -> Any:
        dims = self._dims(values)
        device = next(one.device for one in values if isinstance(one, torch.Tensor))
        made = tuple(
            torch.empty(self._shape(told, dims), dtype=torch_dtype(told["dtype"]), device=device)
            for told in self.told["outputs"].values()
        )
        return made[0] if len(made) == 1 else made

    def _floor(self, problem: Problem) -> Floor:
        every = [*self._inputs.values(), *self.told["outputs"].values()]
        sizes = (prod(self._shape(one, problem.dims)) * torch_dtype(one["dtype"]).itemsize for one in every)
        return Floor(sum(sizes), 0)

    def submission(self, op: str, name: str, file: ForeignFile) -> Implementation:
        """The implementation by a solution, whose Python sources are imported in a worker."""
        told: dict[str, Any] = json.loads(file.text)
        if told["definition"] != self.told["name"]:
            raise InvalidDefinitionError(f"{file.path} solves {told['definition']}, not {self.told['name']}")
        with _of_the_form(file.path, "solution"):
            spec, texts = told["spec"], {str(one["path"]): str(one["content"]) for one in told["sources"]}
            language, entry_point = str(spec.get("language", "python")).lower(), str(spec["entry_point"])

        def make(_problem: Problem, _device: torch.device) -> Callable[..., Any]:
            if language not in _PYTHON:
                raise UnsupportedError(f"{file.path.name} is written in {language}, expected python or triton")
            return python_function(texts, entry_point)

        into = bool(spec.get("destination_passing_style", False))
        made = (
            partial(_outputs_last, make, len(self.told["outputs"]))
            if into
            else partial(_in_order, make, list(self.told["outputs"]))
        )
        return Submission(op, name, made, (file.text,), into=into)


@contextmanager
def _of_the_form(path: Path, what: str) -> Iterator[None]:
    """A context in which data that lacks something, or is of another type, is an InvalidDefinitionError."""
    try:
        yield
    except RegistryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise InvalidDefinitionError(
            f"{path}: no {what} of FlashInfer-Bench: {type(fault).__name__}: {fault}", hint="see its schema"
        ) from fault


def _kind(told: Mapping[str, Any]) -> str:
    """The schema's type of an input: one without a shape is a number."""
    return "Tensor" if told.get("shape") is not None else _SCALARS.get(told["dtype"], "float")


def _outputs_last(make: Any, count: int, problem: Problem, device: torch.device) -> Callable[..., Any]:
    """Destination passing: the outputs come last there, first here."""
    function = make(problem, device)
    return lambda *values: function(*values[count:], *values[:count])


def _in_order(make: Any, outputs: Sequence[str], problem: Problem, device: torch.device) -> Callable[..., Any]:
    function = make(problem, device)

    def caller(*values: Any) -> Any:
        returned = function(*values)
        return tuple(returned[name] for name in outputs) if isinstance(returned, dict) else returned

    return caller


def python_function(texts: Mapping[str, str], entry_point: str) -> Callable[..., Any]:
    """The function ``file.py::function`` of source files, written to the cache folder by their hash, and imported."""
    path, _, function = entry_point.partition("::")
    digest = hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:24]
    folder = cache_folder("importers") / digest
    for name, text in texts.items():
        file = folder / name
        if folder.resolve() not in file.resolve().parents:
            raise InvalidDefinitionError(f"source {name!r} lies outside of its solution")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)
    found: Callable[..., Any] = ForeignFile(folder / path).member(function or "run")
    return found


def workloads_of(path: Path) -> list[dict[str, Any]]:
    """The workloads of a .json or .jsonl file. Raises InvalidDefinitionError with the line that is no workload."""
    text, found = ForeignFile(path).text, list[dict[str, Any]]()
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except ValueError as fault:
            raise InvalidDefinitionError(f"{path}:{number}: no JSON: {fault}") from fault
        found += told if isinstance(told, list) else [told]
    return found
