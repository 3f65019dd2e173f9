"""The cheats of tests/adversarial/memory on a GPU: rings of buffers, and what was made of integers."""

from __future__ import annotations

import pytest
import torch

from registry.device import Device
from registry.problem import Problem, Value

from ..adversarial.memory.trials import Trials

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

PROBLEMS: dict[str, dict[str, Value]] = {
    "scaled_mm": {
        "m": 64, "n": 512, "k": 1024, "dtype": "int8", "scales": "tensor", "out_dtype": "float32", "bias": False,
    },
    "gemm_w4a16": {
        "m": 16, "n": 512, "k": 1024, "group_size": 128, "dtype": "float16", "zeros": "none", "act_order": False,
        "bias": False,
    },
    "square": {"n": 2**20 + 2, "dtype": "float32"},
}  # fmt: skip
RIGHT = {
    "integer.scaled": "scaled_mm",
    "integer.packed": "gemm_w4a16",
    "ring.function": "square",
    "ring.honest": "square",
}
REFUSED = {
    "integer.sums": "scaled_mm",
    "integer.wide": "scaled_mm",
    "integer.levels": "gemm_w4a16",
    "ring.buffers": "square",
}


def tried(name: str, op: str) -> tuple[str, str]:
    file = "cheats_with_integers.py" if name.startswith("integer.") else "cheats_with_rings.py"
    found = Trials(file, Device.best()).of(name, Problem(op, PROBLEMS[op]))
    return found.status, found.message


@pytest.mark.parametrize(("name", "op"), REFUSED.items())
def test_whoever_remembers_is_refused(name: str, op: str) -> None:
    status, message = tried(name, op)
    assert status == "wrong_result", message


@pytest.mark.parametrize(("name", "op"), RIGHT.items())
def test_the_honest_are_accepted(name: str, op: str) -> None:
    status, message = tried(name, op)
    assert status == "ok", message
