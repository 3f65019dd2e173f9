"""Plain torch under torch.compile: a tuned kernel takes the place of torch's function, where it was faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from registry import InvalidArgumentError, UnsupportedError
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher

from ...dispatch.compiled.winners import generated, publish, told_by_a_process, tuned
from ...dispatch.torch_side.conftest import Seen
from ...serving import serving
from ...tiers import THOROUGH

if TYPE_CHECKING:  # see late_imports
    from registry.integrations import torch_compile
    from registry.integrations.torch_compile import replacing

pytestmark = pytest.mark.usefixtures("late_imports")

close = torch.testing.assert_close
SIZES = {"rows": 4, "cols": 64, "dtype": "float32"}
FASTER = {"torch.native": 2.0, "torch.compile": 1.5}


@pytest.fixture
def report() -> Iterator[torch_compile.Replacements]:
    """The report of one test, in which replacing is enabled."""
    torch._dynamo.reset()  # what other tests of the process compiled would be called again
    fresh = replacing.REPLACEMENTS
    fresh.replaced.clear()
    fresh.left.clear()
    torch_compile.enable()
    yield fresh
    torch_compile.disable()
    torch._dynamo.reset()


def winner(folder: Path, *ops: str, name: str = "cpp.rows", baselines: Any = None) -> Dispatcher:
    return tuned(folder / "tuning.db", dict.fromkeys(ops, (name, SIZES)), baselines=baselines or FASTER)


class WrittenOut(torch.nn.Module):
    """An RMS norm as models of transformers write it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(dtype)


def test_functions_with_a_faster_winner_become_calls_of_it(tmp_path: Path, report: torch_compile.Replacements) -> None:
    norm = WrittenOut(torch.float32)
    weight = torch.rand(64)

    def program(x: torch.Tensor) -> Any:
        y = functional.rms_norm(norm(x), (64,), weight, 1e-6)
        return torch.softmax(y, -1), functional.softmax(y, dim=1), y.softmax(-1)

    x = torch.randn(4, 64)
    with serving(winner(tmp_path, "softmax", "rms_norm")), torch.no_grad():
        outputs, (code,) = generated(torch.compile(program, fullgraph=True), x)
        expected = program(x)
    close(outputs, expected)
    assert code.count("= call_site('softmax')") == 3
    assert code.count("= call_site('rms_norm')") == 2
    assert report.replaced == {"rms_norm(4x64, 64)": 2, "softmax(4x64)": 3}
    assert not report.left
    assert "replaced  3 x softmax(4x64)" in str(report)


@pytest.mark.parametrize(
    ("name", "baselines", "reason"),
    [
        ("cpp.rows", {"torch.native": 2.0, "torch.compile": 0.9}, "cpp.rows was not faster than torch.compile"),
        ("cpp.rows", {"cpp.columns": 2.0}, "cpp.rows won, but was not measured beside torch.native and torch.compile"),
        ("cpp.rows", {"torch.native": 2.0}, "cpp.rows won, but was not measured beside torch.compile"),
        ("torch.compile", FASTER, "torch.compile won"),
        ("", FASTER, "no winner is known for it: tune it"),
    ],
)
@pytest.mark.few(2)
def test_without_evidence_torchs_function_stays(
    tmp_path: Path, report: torch_compile.Replacements, name: str, baselines: Any, reason: str
) -> None:
    ops = ["softmax"] if name else []
    with serving(winner(tmp_path, *ops, name=name, baselines=baselines)), torch.no_grad():
        graph = captured(lambda x: torch.softmax(x, -1), torch.randn(4, 64))
    assert not calls(graph)
    assert report.left == {f"softmax(4x64): {reason}": 1}
    assert not report.replaced


def captured(program: Callable[..., Any], *args: torch.Tensor, **options: Any) -> torch.fx.Graph:
    """The graph that Dynamo captures of a program, after the pass."""
    graphs: list[torch.fx.Graph] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        replacing._PASS(module.graph)
        graphs.append(module.graph)
        module.recompile()
        return module.forward

    torch._dynamo.reset()
    close(torch.compile(program, fullgraph=True, backend=backend, **options)(*args), program(*args))
    (graph,) = graphs
    return graph


def test_a_norm_of_torch_without_an_eps_has_its_default(tmp_path: Path, report: torch_compile.Replacements) -> None:
    norm = torch.nn.RMSNorm(64)
    x = torch.randn(4, 64) * 1e-4  # so small that eps decides
    # a graph of an earlier run, which torch's caches hold, is not replaced again
    afresh = torch._inductor.config.patch(fx_graph_cache=False)
    with serving(winner(tmp_path, "rms_norm")), torch.no_grad(), afresh:
        close(torch.compile(norm, fullgraph=True)(x), norm(x))
    assert report.replaced == {"rms_norm(4x64, 64)": 1}


def calls(graph: torch.fx.Graph) -> list[str]:
    """The names of the registry's operators in a graph."""
    targets = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return [target._opname for target in targets if target.namespace == "kernel_registry"]


def test_what_a_graph_must_be(tmp_path: Path, report: torch_compile.Replacements) -> None:
    """Varying sizes, gradients, autocast and strides that the op does not return leave torch's function."""
    x = torch.randn(4, 64)

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    def kept_strides(x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.t(), (4,), x[:, 0], 1e-6)

    with serving(winner(tmp_path, "softmax", "rms_norm")):
        assert not calls(captured(softmax, x, dynamic=True))
        assert calls(captured(softmax, x)) == ["softmax"]
        assert not calls(captured(lambda x: torch.softmax(x, -1, dtype=torch.float64), x))
        assert not calls(captured(softmax, x.requires_grad_()))
        torch_compile.enable("softmax", training=True)
        assert calls(captured(softmax, x)) == ["softmax"]
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert not calls(captured(softmax, x))
        torch_compile.enable("rms_norm")
        assert not calls(captured(softmax, x.detach()))
    reasons = {text.partition(": ")[2] for text in report.left}
    assert reasons == {
        "its sizes vary",
        "it converts to torch.float64",
        "it needs a gradient: enable(training=True)",
        "autocast converts its arguments",
    }


def uuid_with(dispatcher: Dispatcher) -> str:
    with serving(dispatcher):
        return replacing._PASS.uuid()


@pytest.mark.usefixtures("report")
def test_the_key_of_torchs_caches_is_that_of_the_winners_and_their_evidence(tmp_path: Path) -> None:
    """Everything by which a call is replaced or left makes another key; an equal database makes the same."""
    databases = {
        "none": winner(tmp_path / "none"),
        "rows": winner(tmp_path / "rows", "softmax"),
        "columns": winner(tmp_path / "columns", "softmax", name="torch.native"),
        "slower": winner(tmp_path / "slower", "softmax", baselines={"torch.native": 0.5, "torch.compile": 0.4}),
        "fewer": winner(tmp_path / "fewer", "softmax", baselines={"torch.native": 2.0}),
        "norm": winner(tmp_path / "norm", "rms_norm"),
    }
    found = {name: uuid_with(dispatcher) for name, dispatcher in databases.items()}
    assert len(set(found.values())) == len(found)
    assert uuid_with(winner(tmp_path / "again", "softmax")) == found["rows"]
    torch_compile.enable(training=True)
    training = uuid_with(databases["rows"])
    torch_compile.enable("softmax")
    assert len({found["rows"], training, uuid_with(databases["rows"])}) == 3


@pytest.mark.usefixtures("report")
def test_the_key_of_torchs_caches_is_that_of_the_code_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = winner(tmp_path, "softmax")
    before = uuid_with(dispatcher)
    monkeypatch.setattr(replacing, "_SOURCES", replacing._SOURCES[1:])
    assert uuid_with(dispatcher) != before


def test_graphs_of_torchs_caches_are_told_while_the_pass_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = {"autograd_cache_hit": 5}
    monkeypatch.setattr(replacing, "counters", {"aot_autograd": hits})
    monkeypatch.setattr(replacing, "_CACHE_HITS", replacing._CacheHits())
    monkeypatch.setattr(replacing, "REPLACEMENTS", replacing.Replacements())
    monkeypatch.setattr(replacing, "_runs_late", lambda: True)
    assert str(torch_compile.report()) == "nothing was compiled"
    torch_compile.enable()
    hits["autograd_cache_hit"] = 6
    assert str(torch_compile.report()) == ("cached    1 graph of torch's caches, with what was replaced when compiled")
    torch_compile.disable()
    hits["autograd_cache_hit"] = 9
    assert torch_compile.report().cached == 1
    torch_compile.enable("softmax")
    torch_compile.enable("rms_norm")
    hits["autograd_cache_hit"] = 2  # cleared meanwhile
    assert torch_compile.report().cached == 3
    torch_compile.disable()


@pytest.mark.parametrize(
    ("ops", "told"),
    [
        (5, r"torch_compile\.enable\(ops=5\): 5 is no name"),
        (None, r"torch_compile\.enable\(ops=None\): None is no name"),
        ([torch.softmax], r"is no name"),
        ([], r"no ops\n.*softmax.*disable\(\) replaces nothing"),
        ("sofmax", r"'sofmax' is not recognised\n.*did you mean softmax\? expected some of softmax, rms_norm"),
    ],
)
def test_settings_that_name_no_op_are_told_and_change_nothing(ops: Any, told: str) -> None:
    torch_compile.enable("softmax")
    try:
        with pytest.raises(InvalidArgumentError, match=told):
            torch_compile.enable(ops)
        assert frozenset({"softmax"}) == replacing._PASS.ops
    finally:
        torch_compile.disable()


PROGRAM = """
import json
import torch
from torch._dynamo.utils import counters
from registry.integrations import torch_compile
import registry

torch_compile.enable()
compiled = torch.compile(lambda x: torch.softmax(x, -1) + 1, fullgraph=True)
x = torch.randn(4, 64)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
told = torch_compile.report()
print(json.dumps({
    "replaced": told.replaced, "left": list(told.left), "shown": str(told),
    "calls": registry.explain("softmax", x).calls,
    "hits": counters["aot_autograd"]["autograd_cache_hit"],
}))
"""


@THOROUGH
def test_other_evidence_compiles_again_and_the_same_does_not(tmp_path: Path) -> None:
    """In processes that share torch's caches, a graph from which is told as that."""
    database, name = tmp_path / "tuning.db", "softmax(4x64)"
    publish(database, Catalog(), {"softmax": ("cpp.rows", SIZES)}, baselines=FASTER)
    first = told_by_a_process(PROGRAM, tmp_path)
    assert (first["replaced"], first["left"], first["hits"]) == ({name: 1}, [], 0)
    second = told_by_a_process(PROGRAM, tmp_path)
    assert (first["calls"], second["calls"]) == (1, 1)
    if second["hits"] and not second["replaced"]:
        assert second["shown"] == "cached    1 graph of torch's caches, with what was replaced when compiled"
    else:  # versions of torch that run the pass before they look into their caches
        assert (second["replaced"], second["left"]) == (first["replaced"], [])
        assert "cached" not in second["shown"]
    database.unlink()
    slower = {"torch.native": 0.5, "torch.compile": 0.4}
    publish(database, Catalog(), {"softmax": ("cpp.rows", SIZES)}, baselines=slower)
    third = told_by_a_process(PROGRAM, tmp_path)
    assert third["left"] == [f"{name}: cpp.rows was not faster than torch.native and torch.compile"]
    assert (third["replaced"], third["calls"]) == ({}, 0)


def test_settings_and_a_pass_of_the_program() -> None:
    from torch._inductor import config

    with pytest.raises(InvalidArgumentError, match=r"^torch_compile\.enable: 'gelu' is not recognised"):
        torch_compile.enable(["softmax", "gelu"])
    with pytest.raises(InvalidArgumentError, match=r"^torch_compile\.enable: training='yes', expected True or False"):
        torch_compile.enable(training="yes")  # type: ignore[arg-type]
    with config.patch(pre_grad_custom_pass=lambda graph: None):
        with pytest.raises(UnsupportedError, match="pre_grad_custom_pass is set already"):
            torch_compile.enable()
        torch_compile.disable()
        assert config.pre_grad_custom_pass is not None
    torch_compile.enable()
    torch_compile.disable()
    assert config.pre_grad_custom_pass is None


@THOROUGH
def test_gradients_of_replaced_functions(tmp_path: Path, report: torch_compile.Replacements) -> None:
    torch_compile.enable(training=True)
    norm = WrittenOut(torch.float32)
    x, seed = torch.randn(4, 64, requires_grad=True), torch.randn(4, 64)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(norm(x), -1)

    expected = torch.autograd.grad(program(x), (x, norm.weight), seed)
    with serving(winner(tmp_path, "softmax", "rms_norm")):
        compiled = torch.compile(program, fullgraph=True)
        grads, _ = generated(lambda: torch.autograd.grad(compiled(x), (x, norm.weight), seed))
    close(grads, expected)
    assert report.replaced == {"rms_norm(4x64, 64)": 1, "softmax(4x64)": 1}


@THOROUGH
def test_linear_layer_norm_and_attention(tmp_path: Path, report: torch_compile.Replacements) -> None:
    """Attention's heads stand before the length in torch, and after it in the op."""
    x, weight, bias = torch.randn(4, 64), torch.randn(32, 64), torch.randn(32)
    q = torch.randn(1, 8, 2, 16).transpose(1, 2)

    def program(x: torch.Tensor, q: torch.Tensor) -> Any:
        attention = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return functional.linear(x, weight, bias), functional.layer_norm(x, (64,)), attention

    heads_last = q.transpose(1, 2)
    given = {
        "linear": (x, weight, bias),
        "layer_norm": (x, None, None, 1e-5),
        "attention": (heads_last, heads_last, heads_last, None, True, None, 0.0, -1),
    }
    catalog, database = Catalog(entry_points=()), tmp_path / "tuning.db"
    seen = {name: Seen(name, catalog.op(name).reference, "a.seen") for name in given}
    winners: dict[str, tuple[str, Any]] = {}
    for name, values in given.items():
        catalog.register(seen[name])
        op = catalog.op(name)
        winners[name] = "a.seen", op.pose(op.arguments(op.parsed.coerced(values))).dims
    publish(database, catalog, winners, baselines=FASTER)
    with torch.no_grad(), serving(Dispatcher(catalog, str(database))):
        compiled = torch.compile(program, fullgraph=True)
        outputs, _ = generated(compiled, x, q)
        close(outputs, program(x, q))
        close(compiled(x, q), program(x, q))
    assert report.replaced == {
        "attention(1x2x8x16, 1x2x8x16, 1x2x8x16)": 1,
        "linear(4x64, 32x64, 32)": 1,
        "layer_norm(4x64)": 1,
    }
    assert {name: len(one.shapes) for name, one in seen.items()} == dict.fromkeys(given, 2)
