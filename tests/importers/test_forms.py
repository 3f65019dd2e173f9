"""Each form is recognised, becomes an op or an implementation, and is pinned by its hash; no submission is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from registry import Device
from registry.discovery.catalog import Catalog
from registry.errors import InvalidArgumentError, InvalidDefinitionError, PluginError, UnsupportedError
from registry.importers import flashinfer_bench, gpu_mode, kernelbench, op_of, submission_of
from registry.importers.detection import imported
from registry.importers.flashinfer_traces import solution_of, trace_of
from registry.importers.hf_kernels import package_of
from registry.importers.plugin_file import entrants, plugin_text
from registry.importers.race import interval_of_median

CPU = Device.of("cpu")

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(3, 8)]

def get_init_inputs():
    return [8]
"""
OTHER_NAMES = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, width))
        self.b = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return (x @ self.w.T + self.b).relu()
"""
REFERENCE = """
import torch

def generate_input(size, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(size, device="cuda", generator=gen)
    return x, torch.empty(size, device="cuda")

def ref_kernel(data):
    x, out = data
    out[...] = x.cumsum(0)
    return out
"""
TASK = "tests:\n  - {size: 5, seed: 1}\n  - {size: 5, seed: 2}\nbenchmarks:\n  - {size: 64, seed: 3}\n"
DEFINITION = {
    "name": "scaled_product", "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 6}, "K": {"type": "const", "value": 5}},
    "inputs": {
        "a": {"shape": ["M", "K"], "dtype": "float32"}, "b": {"shape": ["N", "K"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"c": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\ndef run(a, b, scale):\n    return a @ b.T * scale\n",
}  # fmt: skip


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def drawn(op: object, dims: dict[str, object]) -> tuple[object, ...]:
    return op.draw(op.problem_of(dims), "normal", torch.Generator().manual_seed(1))  # type: ignore[attr-defined]


def bound(made: object, op: object, dims: dict[str, object]) -> object:
    run = made.bind(op.problem_of(dims), {}, CPU, None)  # type: ignore[attr-defined]
    return lambda *values: run((), values, ())


def test_kernelbenchs_weights_are_arguments_by_name_or_by_order(tmp_path: Path) -> None:
    problem = written(tmp_path / "Linear-ReLU.py", MODEL)
    there = imported(problem)
    op, (dims,) = there.op, there.problems()
    assert op.name == "kernelbench::linear_relu"
    assert op.parsed.names == ("x", "linear_weight", "linear_bias")
    assert op.weights == {"linear_weight", "linear_bias"}
    assert dims == {"x_0": 3, "x_1": 8, "dtype": "float32"}
    assert op.kinds == ("normal", "signed", "spike_last")
    x, weight, bias = values = drawn(op, dims)
    expected = torch.relu(x @ weight.T + bias)
    torch.testing.assert_close(op.reference(*values), expected)
    new = written(tmp_path / "new.py", OTHER_NAMES)
    caller = bound(submission_of(str(new), op.name, "race.new", problem), op, dims)
    torch.testing.assert_close(caller(*values), expected)
    assert not torch.equal(drawn(op, dims)[1], torch.zeros(4, 8))


def test_another_state_is_refused_with_both(tmp_path: Path) -> None:
    problem = written(tmp_path / "linear.py", MODEL)
    new = written(tmp_path / "new.py", OTHER_NAMES.replace("torch.zeros(4, width)", "torch.zeros(width, 4)"))
    op = op_of(problem)
    with pytest.raises(UnsupportedError, match=r"w \[8, 4\].*expected linear.weight \[4, 8\]"):
        bound(submission_of(str(new), op.name, "race.new", problem), op, imported(problem).problems()[0])


def test_gpu_modes_output_buffer_is_no_argument(tmp_path: Path) -> None:
    problem = written(tmp_path / "scan_py" / "reference.py", REFERENCE)
    written(problem.parent / "task.yml", TASK)
    there = imported(problem.parent)
    op = there.op
    assert op.name == "gpumode::scan_py"
    assert there.problems() == [{"size": 64}, {"size": 5}]
    assert op.parsed.names == ("x0",)
    (x,) = values = drawn(op, {"size": 5})
    torch.testing.assert_close(op.reference(x), x.cumsum(0))
    new = written(
        tmp_path / "submission.py",
        "def custom_kernel(data):\n    x, out = data\n    out.copy_(x.cumsum(0))\n    return out\n",
    )
    torch.testing.assert_close(
        bound(submission_of(str(new), op.name, "race.s", problem), op, {"size": 5})(*values), x.cumsum(0)
    )
    with pytest.raises(InvalidArgumentError, match="has no problem size=7"):
        op.problem_of({"size": 7})


def test_flashinfers_definition_solution_and_workloads(tmp_path: Path) -> None:
    problem = written(tmp_path / "scaled_product.json", json.dumps(DEFINITION))
    workloads = [{"definition": "scaled_product", "workload": {"axes": {"M": m}}} for m in (3, 9, 3)]
    lines = written(tmp_path / "w.jsonl", "\n".join(map(json.dumps, workloads)))
    there = imported(problem)
    op = there.op
    assert there.problems(lines) == [{"N": 6, "K": 5, "M": 3}, {"N": 6, "K": 5, "M": 9}]
    assert op.static == {"N", "K"}
    assert op.dynamic == {"M"}
    a, b, scale = values = drawn(op, {"N": 6, "K": 5, "M": 3})
    told = {
        "name": "s", "definition": "scaled_product", "spec": {"language": "python", "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": "def run(a, b, scale):\n    return {'c': (a * scale) @ b.T}\n"}],
    }  # fmt: skip
    solution = written(tmp_path / "solution.json", json.dumps(told))
    caller = bound(submission_of(str(solution), op.name, "race.s", problem), op, {"N": 6, "K": 5, "M": 3})
    torch.testing.assert_close(caller(*values), (a @ b.T * scale,))
    with pytest.raises(InvalidDefinitionError, match="tells no sizes"):
        there.problems()


def test_a_solution_of_ours_runs_the_registry_and_its_trace_has_the_figures() -> None:
    made = solution_of("scaled_product", "softmax", "torch.native", ["x"])
    scope: dict[str, object] = {}
    exec(made["sources"][0]["content"], scope)
    x = torch.randn(3, 5)
    torch.testing.assert_close(scope["run"](x), x.softmax(-1))  # type: ignore[operator]
    trace = trace_of(
        "d", "s", {"M": 3, "N": 6}, ["M"], status="ok", message="", median_us=50.0, reference_us=100.0, device="cpu"
    )  # fmt: skip
    assert trace["evaluation"]["status"] == "PASSED"
    assert trace["evaluation"]["performance"]["speedup_factor"] == 2
    assert trace["workload"]["axes"] == {"M": 3}


def test_inline_source_and_a_function_become_implementations_of_an_op_that_is_there(tmp_path: Path) -> None:
    source = written(tmp_path / "mine.cpp", "torch::Tensor square(torch::Tensor x) {\n  return x * x;\n}\n")
    made = submission_of(str(source), "square", "race.mine")
    assert (made.function, sorted(made.device_types)) == ("square", ["cpu"])  # type: ignore[attr-defined]
    with pytest.raises(InvalidDefinitionError, match="defines no function over torch::Tensor"):
        submission_of(str(written(tmp_path / "no.cu", "int one() { return 1; }")), "square", "race.no")
    python = written(tmp_path / "square.py", "def square(x):\n    return x * x\n")
    assert submission_of(str(python), "square", "race.square").name == "race.square"


def test_a_kernels_package_is_found_by_its_build_and_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = written(
        tmp_path / "act" / "build" / "torch-universal" / "act" / "__init__.py", "def double(x):\n    return x + x\n"
    )
    package = package_of(f"{tmp_path / 'act'}:double")
    pinned = package_of(f"{tmp_path / 'act'}:double", package.digest())
    assert pinned.load()(torch.ones(2)).tolist() == [2, 2]
    init.write_text("def double(x):\n    return x\n")
    with pytest.raises(InvalidDefinitionError, match="has changed"):
        pinned.digest()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InvalidDefinitionError, match="is no commit"):
        package_of("someone/kernel@main:double")


def test_a_plugin_file_points_to_files_and_refuses_changed_ones(tmp_path: Path) -> None:
    problem = written(tmp_path / "linear.py", MODEL)
    new = written(tmp_path / "subs" / "new.py", "raise SystemExit('never run here')\nclass ModelNew: pass\n")
    written(tmp_path / "subs" / "notes.py", "nothing = 1\n")
    there = imported(problem)
    found, refused = entrants([str(tmp_path / "subs")], there.name, there)
    assert [one.name for one in found] == ["race.new"]
    assert list(refused) == ["notes.py"]
    plugin = written(tmp_path / "plugin.py", plugin_text(there.name, there, found))
    catalog = Catalog()
    catalog.load_file(plugin)
    assert [one.name for one in catalog.implementations(there.name)] == ["kernelbench.reference", "race.new"]
    new.write_text("class ModelNew: pass\n")
    with pytest.raises(PluginError, match="has changed"):
        Catalog().load_file(plugin)


def test_the_interval_of_a_median_needs_six_times() -> None:
    assert interval_of_median([1.0] * 5) == (None, None)
    low, high = interval_of_median([float(value) for value in range(100)])
    assert low is not None and high is not None  # noqa: PT018
    assert 30 < low < 49.5 < high < 70


def test_ops_of_a_form_are_in_no_plugin_s_name() -> None:
    # the ops of a name belong to the plugin of that name: flashinfer's are those of its library
    names = {report.name for report in Catalog().plugins()}
    assert names.isdisjoint({flashinfer_bench.VENDOR, gpu_mode.VENDOR, kernelbench.VENDOR})
