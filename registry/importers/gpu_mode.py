"""GPU MODE's form: reference.py with ``ref_kernel`` and ``generate_input``, task.yml, and ``custom_kernel(data)``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml

from ..errors import InvalidDefinitionError
from ..implementation import Implementation
from ..problem import Problem, Value
from .drawing import drawing, put_together, seed_from, taken_apart
from .foreign_file import ForeignFile
from .problem_file import ProblemCase, ProblemFile
from .submission import Submission

VENDOR = "gpumode"
_TASKS = ("task.yml", "task.yaml")
_SEED = "seed"


def is_problem(file: ForeignFile) -> bool:
    """Whether a file defines ``ref_kernel`` and ``generate_input``."""
    return file.defines("ref_kernel", "generate_input")


def is_submission(file: ForeignFile) -> bool:
    """Whether a file defines ``custom_kernel``."""
    return file.defines("custom_kernel")


class GpuModeProblem(ProblemFile):
    """A task: each distinct entry of ``benchmarks`` and ``tests`` in task.yml beside reference.py is a case.

    An input that ``ref_kernel`` writes to, such as memory for the output, is no argument of the op: each call gets its
    own. Tensors are drawn by ``generate_input`` alone, which knows the inputs that a task allows. Reference and
    submissions import ``task``, ``utils`` and whatever else lies beside the reference, one folder up, or where task.yml
    says under ``files``; where no ``task`` is, its types are supplied.
    """

    def __init__(self, file: ForeignFile) -> None:
        super().__init__(file)
        self.file = replace(file, folders=self.folders, supplied={"task": _types()})

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        here = self.file.path.parent
        files = self._task.get("files") or []
        named = [here / each["source"] for each in files if isinstance(each, dict) and "source" in each]
        return tuple(dict.fromkeys([here, here.parent, *(each.resolve().parent for each in named if each.is_file())]))

    @cached_property
    def _task(self) -> Mapping[str, Any]:
        """The mapping in task.yml; empty where the folder has no such file."""
        paths = [self.file.path.parent / name for name in _TASKS if (self.file.path.parent / name).is_file()]
        try:
            told = yaml.safe_load(ForeignFile(paths[0]).text) if paths else {}
        except yaml.YAMLError as fault:
            raise InvalidDefinitionError(f"{paths[0]}: no YAML: {str(fault).splitlines()[0]}") from fault
        return told if isinstance(told, dict) else {}

    @property
    def changes_inputs(self) -> bool:
        return False

    @cached_property
    def _settings(self) -> list[dict[str, Value]]:
        entries = [*(self._task.get("benchmarks") or []), *(self._task.get("tests") or [])]
        found = [{name: value for name, value in entry.items() if name != _SEED} for entry in entries]
        distinct = [one for place, one in enumerate(found) if one not in found[:place]]
        return distinct or [self._defaults()]

    def _defaults(self) -> dict[str, Value]:
        parameters = inspect.signature(self.file.member("generate_input")).parameters.values()
        lacking = [one.name for one in parameters if one.default is one.empty and one.name != _SEED]
        if lacking:
            raise InvalidDefinitionError(
                f"{self.file.path}: generate_input takes {', '.join(lacking)}, and no task.yml tells them",
                hint="put task.yml with tests or benchmarks beside it",
            )
        return {one.name: one.default for one in parameters if one.name != _SEED}

    def _generated(self, settings: Mapping[str, Value], device: torch.device, seed: int) -> Any:
        generate = self.file.member("generate_input")
        takes = inspect.signature(generate).parameters
        seeds = {_SEED: seed} if _SEED in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()) else {}
        with drawing(device, seed):
            return generate(**settings, **seeds)

    @cached_property
    def _written(self) -> frozenset[int]:
        """Places of the tensors that the reference writes to, as the smallest case shows on the CPU."""
        tensors: list[torch.Tensor] = []
        template = taken_apart(self._generated(self._smallest, torch.device("cpu"), 1), tensors)
        changed = [one.clone() for one in tensors]
        self._referred(put_together(template, changed), torch.device("cpu"))
        pairs = enumerate(zip(tensors, changed, strict=True))
        return frozenset(place for place, (was, now) in pairs if not torch.equal(was.nan_to_num(), now.nan_to_num()))

    @property
    def _smallest(self) -> dict[str, Value]:
        def size(settings: Mapping[str, Value]) -> int:
            made = 1
            for value in settings.values():
                made *= max(value, 1) if isinstance(value, int) else 1
            return made

        return min(self._settings, key=size)

    def _referred(self, data: Any, device: torch.device) -> Any:
        with drawing(device, 0):
            return self.file.member("ref_kernel")(data)

    @cached_property
    def cases(self) -> Sequence[ProblemCase]:
        found = [self._case(settings) for settings in self._settings]
        same = self._same_shapes(found)
        return [
            replace(case, dims={name: str(value) if name in same else value for name, value in case.dims.items()})
            for case in found
        ]

    @staticmethod
    def _same_shapes(cases: Sequence[ProblemCase]) -> frozenset[str]:
        """Settings in which cases of the same shapes differ: they change the data alone."""
        found: set[str] = set()
        for place, case in enumerate(cases):
            for other in cases[:place]:
                if other.shapes == case.shapes:
                    found |= {name for name, value in case.dims.items() if other.dims.get(name) != value}
        return frozenset(found)

    @property
    def distributions(self) -> Mapping[str, tuple[str, ...]]:
        same = self._same_shapes(self.cases)
        return {name: tuple(dict.fromkeys(str(case.dims[name]) for case in self.cases)) for name in sorted(same)}

    def _case(self, settings: dict[str, Value]) -> ProblemCase:
        try:
            data, tensors = self._generated(settings, torch.device("meta"), 1), list[torch.Tensor]()
            template = taken_apart(data, tensors)
        except Exception:  # a task may look at the data that it draws
            data, tensors = self._generated(settings, torch.device("cpu"), 1), list[torch.Tensor]()
            template = taken_apart(data, tensors)
        shapes, dtypes = tuple(tuple(one.shape) for one in tensors), tuple(one.dtype for one in tensors)
        kept = [place for place in range(len(tensors)) if place not in self._written]
        dims = {name: value if isinstance(value, int | float | str) else str(value) for name, value in settings.items()}
        return _TaskCase(
            dims, tuple(shapes[place] for place in kept), tuple(dtypes[place] for place in kept), template,
            settings=settings, kept=kept, all_shapes=shapes, all_dtypes=dtypes,
        )  # fmt: skip

    @cached_property
    def names(self) -> Sequence[str]:
        return [f"x{place}" for place in range(len(self.cases[0].shapes))]

    def draw(self, case: ProblemCase, generator: torch.Generator) -> list[torch.Tensor]:
        assert isinstance(case, _TaskCase)
        tensors: list[torch.Tensor] = []
        taken_apart(self._generated(case.settings, generator.device, seed_from(generator)), tensors)
        return [tensors[place].to(generator.device).contiguous() for place in case.kept]

    def run(self, case: ProblemCase, tensors: Sequence[torch.Tensor]) -> Any:
        assert isinstance(case, _TaskCase)
        return self._referred(case.data([one.clone() for one in tensors]), tensors[0].device)

    def reference_caller(self, problem: Problem, device: torch.device) -> Callable[..., Any]:
        return self._caller(problem, self.file.member("ref_kernel"))

    def _caller(self, problem: Problem, kernel: Callable[..., Any]) -> Callable[..., Any]:
        case = self.case_of(problem.dims)
        assert isinstance(case, _TaskCase)
        data = case.data
        return lambda *tensors: kernel(data(tensors))

    def submission(self, op: str, name: str, file: ForeignFile) -> Implementation:
        """The implementation by the ``custom_kernel`` of a file."""
        beside = replace(file, folders=self.folders, supplied=self.file.supplied)

        def make(problem: Problem, _device: torch.device) -> Callable[..., Any]:
            return self._caller(problem, beside.member("custom_kernel"))

        return Submission(op, name, make, (file.source, self.file.source))


@dataclass(frozen=True, kw_only=True)
class _TaskCase(ProblemCase):
    """A case with its settings, and the places among all tensors of those that are arguments."""

    settings: Mapping[str, Value]
    kept: Sequence[int]
    all_shapes: tuple[tuple[int, ...], ...]
    all_dtypes: tuple[torch.dtype, ...]

    def data(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The data of a call: its tensors, and new memory for those that the kernel writes to."""
        given = dict(zip(self.kept, tensors, strict=True))
        double = any(one.dtype == torch.float64 for one in tensors)
        every = [
            given[place] if place in given else torch.zeros(
                shape, dtype=torch.float64 if double and dtype.is_floating_point else dtype, device=tensors[0].device
            )
            for place, (shape, dtype) in enumerate(zip(self.all_shapes, self.all_dtypes, strict=True))
        ]  # fmt: skip
        template = self.template
        return put_together(copy.copy(template), every)


def _types() -> ModuleType:
    """A ``task`` whose every name is a type for anything: what a leaderboard's own file declares is for readers."""
    made = ModuleType("task")
    vars(made).update(input_t=Any, output_t=Any, TestSpec=Any, __getattr__=lambda _name: Any)
    return made


def reference_beside(path: Path) -> Path | None:
    """The reference.py of a folder, if it has one."""
    found = path / "reference.py"
    return found if found.is_file() else None
