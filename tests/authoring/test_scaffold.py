"""Files that `registry scaffold` writes: they run, are right, and use no private part of torch."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from registry.authoring.compiled_start import problem_to_begin_with, start_from_compile
from registry.authoring.inductor_module import read_module
from registry.authoring.reference_start import op_from_reference
from registry.checking.running import CheckRequest, check_plugin
from registry.discovery.catalog import Catalog
from registry.errors import RegistryError
from registry.testing import check_op

MINE = '''"""An author's file."""
import torch
import torch.nn.functional as F

def scaled_silu(x, index, w, factor, flag):
    return F.silu(x) * w * factor + index, x.sum(-1)

def inputs():
    return torch.randn(6, 40), torch.arange(40), torch.randn(40), 1.5, True
'''


def compiled(op: str, folder: Path, dims: dict[str, int | str] | None = None) -> Path:
    contract = Catalog().op(op)
    text = start_from_compile(contract, problem_to_begin_with(contract, dims), "start")
    assert not re.search(r"triton_helpers|libdevice|tl_math|torch\._|tmp\d|in_ptr|out_ptr", text), text
    path = folder / "start.py"
    path.write_text(text)
    return path


def test_a_kernel_of_torch_compile_is_written_to_be_read(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    text = compiled("softmax", tmp_path, {"rows": 8, "cols": 300, "dtype": "float32"}).read_text()
    functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert [each.arg for each in functions["softmax_kernel"].args.args] == ["x", "y", "rows", "cols", "ROWS"]
    assert "largest = tl.reduce(" in text
    assert "tl.store(y + " in text


def test_what_a_library_computes_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    with pytest.raises(RegistryError, match=r"Triton kernels alone: it wrote extern_kernels\.mm"):
        compiled("linear", tmp_path)
    with pytest.raises(RegistryError, match="has no function `call`"):
        read_module("x = 1\n")
    with pytest.raises(RegistryError, match="writes into its arguments"):
        compiled("fused_add_rms_norm", tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("softmax", None),
        ("rms_norm", {"rows": 2, "cols": 90, "dtype": "float32"}),
        ("layer_norm", None),
        ("gelu", None),
        ("silu_and_mul", None),
    ],
)
def test_kernels_of_torch_compile_are_right_and_compile(
    op: str, dims: dict[str, int | str] | None, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    done = check_plugin(CheckRequest(str(compiled(op, tmp_path, dims)), ["sm_90"], dims=dims))
    assert done.ok, done.as_data()
    assert {each.name for each in done.outcomes if each.verdict == "passed"} >= {"load", "numerics", "compile"}


def test_a_function_becomes_the_contract_of_an_op(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "acme.py").write_text(op_from_reference(tmp_path / "mine.py", "acme::scaled_silu"))
    catalog = Catalog()
    catalog.load_file(tmp_path / "acme.py")
    op = catalog.op("acme::scaled_silu")
    assert check_op(op).ok
    assert op.examples[0] == {"m": 6, "n": 40, "dtype": "float32"}
    assert (op.dynamic, op.static) == ({"m"}, {"n", "dtype"})
    told = "acme::scaled_silu(Tensor x, Tensor index, Tensor w, float factor=1.5, bool flag=True)"
    assert op.schema == f"{told} -> (Tensor y0, Tensor y1)"
    assert [one.name for one in catalog.implementations(op.name)] == ["acme.torch"]


@pytest.mark.thorough
def test_a_contract_from_a_function_passes_every_check(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "acme.py").write_text(op_from_reference(tmp_path / "mine.py", "acme::scaled_silu"))
    done = check_plugin(CheckRequest(str(tmp_path / "acme.py")))
    assert done.ok, done.as_data()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def inputs(): return ()\n", "there is no function thing"),
        ("def thing(x): return x\n", "there is no function inputs"),
        ("import torch\ndef thing(x): return x\ndef inputs(): return ()\n", "returns 0 values, the function takes 1"),
        ("def thing(x): return x\ndef inputs(): return 'text'\n", "expected a tensor|no floating tensor"),
        ("import torch\ndef thing(x): return 1\ndef inputs(): return torch.ones(3)\n", "returns"),
        ("import torch\ndef thing(x): return x @ x\ndef inputs(): return torch.ones(2, 3)\n", "of its example inputs"),
        ("import (\n", "SyntaxError"),
    ],
)
def test_a_function_that_cannot_be_an_op_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RegistryError, match=message):
        op_from_reference(tmp_path / "mine.py", "acme::thing")
