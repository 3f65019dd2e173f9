"""Files that are nearly of a known form: each is refused with what was given and what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry.errors import InvalidDefinitionError
from registry.importers.detection import imported, submission_of
from registry.importers.flashinfer_bench import workloads_of
from registry.importers.foreign_file import plain_name
from registry.importers.plugin_file import entrants

DEFINITION: dict[str, Any] = {
    "name": "squares", "op_type": "elementwise",
    "axes": {"n": {"type": "var"}, "h": {"type": "const", "value": 8}},
    "inputs": {"x": {"shape": ["n", "h"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n", "h"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * x\n",
}  # fmt: skip
SOLUTION: dict[str, Any] = {
    "name": "mine", "definition": "squares", "author": "me",
    "spec": {"language": "python", "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(x):\n    return x * x\n"}],
}  # fmt: skip


def as_json(folder: Path, name: str, data: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"outputs": {}}, "the definition has no outputs"),
        ({"inputs": [1]}, "no definition of FlashInfer-Bench"),
        ({"axes": {"n": 3, "h": 4}}, "no definition of FlashInfer-Bench: TypeError"),
        ({"axes": {"n": {"type": "var"}, "h": {"type": "const", "value": "many"}}}, "ValueError: .*many"),
        ({"axes": {"n": {"type": "var"}}}, "axes does not define h, which a shape names"),
        ({"inputs": {"x": {"shape": ["n", "h"]}}}, "KeyError: .dtype"),
    ],
)
def test_a_definition_that_lacks_something_is_refused(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinitionError, match=told):
        imported(as_json(tmp_path, "squares.json", {**DEFINITION, **changed}))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"spec": {"language": "python"}}, "no solution of FlashInfer-Bench: KeyError: .entry_point"),
        ({"sources": "main.py"}, "no solution of FlashInfer-Bench: TypeError"),
        ({"definition": "cubes"}, "solves cubes, not squares"),
    ],
)
def test_a_solution_that_lacks_something_is_refused(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    there = imported(as_json(tmp_path, "squares.json", DEFINITION))
    file = as_json(tmp_path, "mine.json", {**SOLUTION, **changed})
    with pytest.raises(InvalidDefinitionError, match=told):
        submission_of(str(file), there.name, "race.mine", there.file.path)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"axes": {"n": "many"}, "uuid": "w1"}, "workload w1: n is 'many'"),
        ({"axes": {"n": -1}, "uuid": "w1"}, "workload w1: n is -1"),
        ({"axes": {"m": 1}, "uuid": "w1"}, "workload w1: axes missing: n"),
        (7, "workload 7"),
    ],
)
def test_a_workload_of_no_size_is_told(workload: Any, told: str, tmp_path: Path) -> None:
    there = imported(as_json(tmp_path, "squares.json", DEFINITION))
    workloads = as_json(tmp_path, "workloads.jsonl", workload)
    with pytest.raises(InvalidDefinitionError, match=told):
        there.problems(workloads)
    assert workloads_of(workloads) == [workload]


def test_a_keyword_is_no_name() -> None:
    assert [plain_name(text) for text in ("def", "Lambda", "my op", "3d")] == ["p_def", "p_lambda", "my_op", "p3d"]


def test_a_folder_without_submissions_is_an_error_and_a_package_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package" / "build" / "torch-universal" / "act"
    package.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidDefinitionError, match="package: no submission in it") as raised:
        entrants(["package"], "square", None)
    assert "package:FUNCTION" in raised.value.hint
    (package / "__init__.py").write_text("def square(x):\n    return x * x\n")
    (found,), refused = entrants(["package:square"], "square", None)
    assert found.path == f"{tmp_path / 'package'}:square"
    assert refused == {}


MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        {body}

def get_inputs():
    return [torch.rand(4, 6)]

def get_init_inputs():
    return []
"""
TASK = """
import torch

def ref_kernel(x):
    {body}

def generate_input(size, seed):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(seed))
"""


@pytest.mark.parametrize("form", [MODEL, TASK], ids=["KernelBench", "GPU MODE"])
@pytest.mark.parametrize(
    ("body", "is_constant"),
    [
        ("return torch.zeros(3)", True),
        ("return torch.softmax(x.sum(1, keepdim=True), 1)", True),
        ("y = x.mean(1, keepdim=True); return y - y.mean(1, keepdim=True) + 3", True),
        ("return torch.zeros(3), x * 1e-9", False),
        ("return x.argmax(1)", False),
    ],
)
def test_a_problem_whose_result_is_the_same_for_all_inputs_is_refused(
    form: str, body: str, is_constant: bool, tmp_path: Path
) -> None:
    file = tmp_path / "problem.py"
    file.write_text(form.format(body=body))
    (tmp_path / "task.yml").write_text("tests: [{size: 4, seed: 1}]\n")
    there = imported(file)
    if not is_constant:
        assert there.op.kinds[0] == "normal"
        return
    with pytest.raises(InvalidDefinitionError, match="the same whatever the inputs are"):
        there.op  # noqa: B018
