"""Winners in compiled programs on a GPU: Triton's and CUDA's plans are called directly, torch.compile's are inlined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.dispatch.dispatcher import Dispatcher

from ..dispatch.compiled.winners import generated, tuned, without_comments
from ..serving import serving

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

close = torch.testing.assert_close
SIZES = {"rows": 64, "cols": 1024, "dtype": "bfloat16"}
OPS = ("softmax", "rms_norm")


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()
    torch._dynamo.reset()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def scale() -> torch.Tensor:
    """A weight near one: a large exponent would show bfloat16's rounding of the norm."""
    return 1 + 0.1 * half(1024)


def winner(folder: Path, name: str) -> Dispatcher:
    return tuned(folder / "tuning.db", dict.fromkeys(OPS, (name, SIZES)), "cuda")


def chain(dispatcher: Dispatcher) -> Any:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = dispatcher.call("softmax", dispatcher.call("rms_norm", x, weight)) * 64
        return y

    return program


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.rms_norm(x.double(), (1024,), weight.double(), 1e-6)
    return torch.softmax(normed, -1) * 64


@pytest.mark.parametrize("name", ["triton.row", "cuda.row", "torch.native"])
def test_plans_are_called_directly_and_resolved_once(tmp_path: Path, name: str) -> None:
    dispatcher = winner(tmp_path, name)
    with serving(dispatcher), torch.no_grad():
        compiled = torch.compile(chain(dispatcher), fullgraph=True)
        x, weight = half(64, 1024), scale()
        y, (code,) = generated(compiled, x, weight)
        close(y.double(), expected(x, weight), atol=2e-2, rtol=2e-2)
        assert code.count("= call_site(") == 2
        misses = [dispatcher.bound(op).misses for op in OPS]
        for _ in range(3):
            x = half(64, 1024)
            close(compiled(x, weight).double(), expected(x, weight), atol=2e-2, rtol=2e-2)
        assert [dispatcher.bound(op).misses for op in OPS] == misses
        told = dispatcher.explain("softmax", half(64, 1024))
    assert (told.step, told.implementation, told.calls) == ("exact", name, 4)


@pytest.mark.parametrize("name", ["triton.row", "cuda.row"])
def test_an_unaligned_slice_of_a_larger_tensor(tmp_path: Path, name: str) -> None:
    dispatcher = winner(tmp_path, name)
    with serving(dispatcher), torch.no_grad():
        compiled = torch.compile(chain(dispatcher), fullgraph=True)
        weight = scale()
        for offset in (0, 1, 4, 0):
            x = half(64 * 1024 + 8)[offset : offset + 64 * 1024].view(64, 1024)
            close(compiled(x, weight).double(), expected(x, weight), atol=2e-2, rtol=2e-2)


def test_a_winner_by_torch_compile_is_inlined_and_fused(tmp_path: Path) -> None:
    dispatcher = winner(tmp_path, "torch.compile")
    with serving(dispatcher), torch.no_grad():
        compiled = torch.compile(chain(dispatcher), fullgraph=True)
        x, weight = half(64, 1024), scale()
        y, (code,) = generated(compiled, x, weight)
        close(y.double(), expected(x, weight), atol=2e-2, rtol=2e-2)
        assert "call_site" not in code
        assert "torch.ops.kernel_registry" not in without_comments(code)
        assert dispatcher.explain("softmax", x).calls == 0


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch captures nothing to get a memory pool
@pytest.mark.parametrize("name", ["triton.row", "torch.compile"])
def test_gradients_and_cuda_graphs(tmp_path: Path, name: str) -> None:
    dispatcher = winner(tmp_path, name)
    with serving(dispatcher):
        compiled = torch.compile(chain(dispatcher), fullgraph=True)
        x, weight = half(64, 1024).requires_grad_(), scale().requires_grad_()
        seed = half(64, 1024)
        for _ in range(2):
            found = torch.autograd.grad(compiled(x, weight), (x, weight), seed)
            wanted = torch.autograd.grad(expected(x, weight), (x, weight), seed.double())
            for one, other in zip(found, wanted, strict=True):
                close(one.double(), other.double(), atol=0.3 if one.dim() == 1 else 5e-2, rtol=5e-2)
        with torch.no_grad():
            replayed = torch.compile(chain(dispatcher), fullgraph=True, mode="reduce-overhead")
            for _ in range(4):
                x, weight = half(64, 1024), scale()
                torch.compiler.cudagraph_mark_step_begin()
                close(replayed(x, weight).double(), expected(x, weight), atol=2e-2, rtol=2e-2)


def test_a_captured_graph_of_a_compiled_program_replays(tmp_path: Path) -> None:
    dispatcher = winner(tmp_path, "triton.row")
    with serving(dispatcher), torch.no_grad():
        compiled = torch.compile(chain(dispatcher), fullgraph=True)
        x, weight = half(64, 1024), scale()
        for _ in range(2):
            compiled(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x, weight)
        x.copy_(half(64, 1024))
        graph.replay()
        close(y.double(), expected(x, weight), atol=2e-2, rtol=2e-2)
