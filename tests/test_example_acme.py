"""A third party's package of nine kinds of ops, built and found: checked, tuned from a file, called and compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import registry
from registry.cli import app
from registry.cli.tune import new_tune_app
from registry.contract import as_tuple
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.testing import check_implementation, check_op
from registry.tuner.decide.judge import BLOCKS, PRE_ROUNDS
from registry.tuner.shapes.shapes import load_shapes

from . import fresh
from .covering import covering
from .serving import serving
from .tiers import THOROUGH

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "registry-acme"

OPS = {
    "acme::layer_norm": "acme.rows",
    "acme::layer_norm_backward": "acme.aten",
    "acme::fused_add_rms_norm": "acme.rows",
    "acme::attention": "acme.sdpa",
    "acme::paged_decode": "acme.heads",
    "acme::gemm": "acme.columns",
    "acme::fp8_gemm": "acme.table",
    "acme::topk_routing": "acme.stable",
    "acme::moe_linear": "acme.tokens",
    "acme::gated": "acme.functional",
    "gemm_int4": "acme.by_column",
}
"""Each op of the package, and the one of the box that it implements, with the implementation that runs on CPUs."""

INT4 = [
    {"m": m, "n": 33, "k": 256, "group_size": 64, "bits": 4, "dtype": "bfloat16", "symmetric": symmetric}
    for m, symmetric in ((1, True), (3, False))
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the package's wheel does, its entry point among it."""
    folder = tmp_path_factory.mktemp("acme")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=EXAMPLE, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        found.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def catalog(package: Path) -> Iterator[Catalog]:
    """The plugins in the box and this one, found by their entry points."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        found = Catalog()
        assert not [plugin.fault for plugin in found.plugins() if plugin.fault]
        yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "registry_acme"]:
        del sys.modules[name]


TUNED = ("acme::fused_add_rms_norm", "acme::paged_decode", "gemm_int4")
"""Those whose winners every change looks for: an op that mutates, one with a distribution of lengths, and one of the
box. Each op is a second of a core more to tune."""


@pytest.fixture(scope="module")
def database(package: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Winners of the package's shapes file, of the ops in TUNED or, for the thorough, of all: tuned once for all
    processes of a test run.
    """
    thorough = any(item.get_closest_marker("thorough") for item in request.session.items)
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(shared / "acme.lock"):
        file = shared / "acme.db"
        if not file.exists():
            made = tmp_path_factory.mktemp("tuned") / "tuning.db"
            _tune(package, made, OPS if thorough else TUNED).rename(file)
    return file


def _tune(package: Path, file: Path, ops: Iterable[str]) -> Path:
    """What ``tune`` stores where the package is installed, run in this process: its children are forked as others'."""
    words = ["--shapes", str(EXAMPLE / "shapes.yaml"), "--device", "cpu", "--db", str(file), "--trials", "1"]
    words += [word for op in ops for word in ("--op", op)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        patch.chdir(package)  # where its children look first
        patch.setenv("KERNEL_REGISTRY_PLUGINS", "acme")
        patch.setattr("registry.tuner.decide.judge.MOST_BLOCKS", BLOCKS)
        patch.setattr("registry.tuner.decide.contest.ROUNDS", PRE_ROUNDS)
        assert app.run(new_tune_app(), "tune", words) == 0
    return file


@pytest.fixture
def dispatcher(catalog: Catalog, database: Path) -> Iterator[Dispatcher]:
    """Runs calls, and torch's operators meanwhile, by those winners."""
    found = Dispatcher(catalog, str(database))
    with serving(found):
        yield found


def test_its_ops_and_implementations_are_found(catalog: Catalog) -> None:
    (report,) = [plugin for plugin in catalog.plugins() if plugin.name == "acme"]
    assert set(report.ops) == {op for op in OPS if "::" in op}
    assert {f"{op}/{name}" for op, name in OPS.items()} <= set(report.implementations)


@pytest.mark.parametrize("name", [op for op in OPS if "::" in op])
def test_a_contract_agrees_with_itself(catalog: Catalog, name: str) -> None:
    op = catalog.op(name)
    assert len(check_op(op).checked) == len(op.examples)


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=THOROUGH, id="all")])
@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(6)
def test_an_implementation_is_right(catalog: Catalog, name: str, most: int | None) -> None:
    """On the op's examples, or on ``most`` of those that differ."""
    implementation, op = catalog.implementation(name, OPS[name]), catalog.op(name)
    examples = [op.problem_of(dims) for dims in (INT4 if name == "gemm_int4" else op.examples)]
    fit = [each for each in examples if not list(implementation.unsupported(each, registry.Device.of("cpu")))]
    problems = examples if most is None else covering(fit)[:most]
    assert check_implementation(implementation, op, problems=problems, device="cpu").checked


def drawn(dispatcher: Dispatcher, name: str) -> tuple[registry.Op, tuple[Any, ...]]:
    """An op and the arguments of its problem in the shapes file."""
    op = dispatcher.catalog.op(name)
    (problem,) = load_shapes(EXAMPLE / "shapes.yaml", dispatcher.catalog)[name]
    return op, op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))


def copied(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values whose tensors are copies."""
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)


def assert_right(op: registry.Op, results: Any, values: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Outputs and mutated arguments of a call are those of the reference on ``expected``, which it may write to."""
    wanted = op.results(op.reference(*expected), expected)
    for found, right in zip(op.results(results, values), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=2e-2 if found.dtype == torch.bfloat16 else 1e-4, atol=1e-3)
    assert len(as_tuple(results)) == len(op.parsed.outputs)


@pytest.mark.parametrize("name", [name if name in TUNED else pytest.param(name, marks=THOROUGH) for name in OPS])
def test_a_call_runs_the_winner_and_explain_tells_so(dispatcher: Dispatcher, name: str) -> None:
    op, values = drawn(dispatcher, name)
    expected = copied(values)
    assert_right(op, dispatcher.call(name, *values), values, expected)
    told = dispatcher.explain(name, *values)
    assert (told.step, told.implementation) == ("exact" if not op.distributions else "nearest", OPS[name])


@pytest.mark.parametrize("name", [name if name in TUNED else pytest.param(name, marks=THOROUGH) for name in OPS])
def test_torch_compile_takes_it_into_one_graph(dispatcher: Dispatcher, name: str) -> None:
    torch.compiler.reset()
    op, values = drawn(dispatcher, name)
    call = dispatcher.op(name)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(*given: Any) -> Any:
        return call(*given)

    expected = copied(values)
    assert_right(op, program(*values), values, expected)


DIFFERENTIABLE = {
    "acme::layer_norm": (0, 1, 2),
    "acme::attention": (0, 1, 2, 3),
    "acme::gemm": (0, 1, 2),
    "acme::gated": (0,),
}
"""Ops with a gradient, and the places of the arguments that have one."""


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_reference(dispatcher: Dispatcher, name: str) -> None:
    op, values = drawn(dispatcher, name)
    places = DIFFERENTIABLE[name]
    gradients = []
    for run in (dispatcher.op(name), op.reference):
        given = tuple(
            value.detach().requires_grad_() if place in places else value for place, value in enumerate(values)
        )
        outputs = run(*given)
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        weight = torch.linspace(-1.0, 1.0, y.numel()).view_as(y)
        gradients.append(torch.autograd.grad(y, [given[place] for place in places], weight))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_gradcheck_runs_through_a_call(dispatcher: Dispatcher) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in ((3, 5), (5,), (5,))
    )
    call = dispatcher.op("acme::layer_norm")
    assert torch.autograd.gradcheck(lambda *given: call(*given)[0], (x, weight, bias))


def test_statistics_have_no_gradient_since_the_backward_takes_none(dispatcher: Dispatcher) -> None:
    y, mean, rstd = dispatcher.call("acme::layer_norm", torch.randn(4, 8, requires_grad=True), torch.ones(8))
    assert (y.requires_grad, mean.requires_grad, rstd.requires_grad) == (True, False, False)


def test_a_sequence_length_finds_the_winner_of_its_distribution(dispatcher: Dispatcher) -> None:
    (problem,) = load_shapes(EXAMPLE / "shapes.yaml", dispatcher.catalog)["acme::paged_decode"]
    assert problem.lengths == "one_long"
    told = dispatcher.explain_problem(problem, registry.Device.of("cpu"))
    assert told.step == "exact"


TRITON = """
from tests.interpreting import make_quicker
make_quicker()
import registry
from registry.testing import check_implementation
for op in ("acme::layer_norm", "acme::fused_add_rms_norm"):
    (found,) = [each for each in registry.implementations(op) if each.name == "acme.triton"]
    contract = registry.ops()[op]
    print(check_implementation(found, contract, problems=contract.examples[-2:], device="cpu"))
"""


@pytest.mark.thorough
def test_its_triton_kernels_are_right_in_the_interpreter(package: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(package), str(ROOT), str(ROOT / "plugins")])
    done = fresh.run("-c", TRITON, env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("0 failed") == 2


def test_the_module_alone_imports_nothing_heavy(package: Path) -> None:
    code = "import sys, registry, registry_acme; print('triton' in sys.modules, 'registry_acme.ops' in sys.modules)"
    path = os.pathsep.join([str(package), str(ROOT), str(ROOT / "plugins")])
    done = fresh.run("-c", code, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
def test_its_kernels_are_compiled_for_a_gpu_and_for_this_host(package: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(package), str(ROOT), str(ROOT / "plugins")])
    command = ["-m", "registry.cli.main", "compile", "--arch", "sm_90", "--op", "acme::layer_norm", "--json"]
    environment = {**os.environ, "PYTHONPATH": path, "KERNEL_REGISTRY_PLUGINS": "acme"}
    done = fresh.run(*command, "--shapes", EXAMPLE / "shapes.yaml", env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(one["implementation"], one["architecture"]): one for one in json.loads(done.stdout)["variants"]}
    assert found.keys() == {("acme.triton", "sm_90"), ("acme.rows", "this host")}
    assert found["acme.triton", "sm_90"]["resources"]["registers"] > 0
    assert not any(one["fault"] for one in found.values())
