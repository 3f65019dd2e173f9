"""Peers of the benchmark of models on a GPU: their layers give about the plain model's logits, also in CUDA graphs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("transformers", minversion="5")

from benchmarks.models import __main__ as models
from benchmarks.models import peers


@pytest.mark.filterwarnings(
    "ignore:TensorFloat32 tensor cores:UserWarning", "ignore:The CUDA Graph is empty:UserWarning"
)
@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peers_layers_round_the_weights_and_run_in_every_form(name: str) -> None:
    if any(find_spec(part) is None for part in name.removesuffix("-fp8").split("-")):
        pytest.skip(f"needs {' and '.join(peers.INSTALL[name])}")
    given = ["--smoke", "--layers", "1", "--batches", "1,16", "--steps", "2", "--forms", "eager,graph,reduce-overhead"]
    rows = [row for row in models.main([*given, "--ways", f"plain,{name}"]) if row.way == name]
    assert [row.fault for row in rows] == [""] * 6
    assert all(row.off is not None and 0 < row.off < 0.3 for row in rows)
