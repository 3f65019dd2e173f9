"""`registry check` on a GPU: numbers at tuned shapes, capture and replay, two streams, and what the sanitizer finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.checking import sanitizer
from registry.checking.outcomes import PluginCheck
from registry.checking.running import CheckRequest, check_plugin

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KERNEL = """
import registry
import triton
import triton.language as tl
from registry.backends.triton import TritonImplementation


@triton.jit
def square_kernel(y, x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n)
    tl.store(y + offsets, values * values, mask={mask})


class Square(TritonImplementation):
    op, name = "square", "mine.square"

    def unsupported(self, problem, device):
        if problem.dtype == "float64" or not problem.traits["contiguous"]:
            yield "written for contiguous float32 and halves"

    def launch(self, problem, config, device):
        grid = (triton.cdiv(problem.n, 1024),)
        return registry.Launch(square_kernel, grid=grid, args=("y", "x", problem.n), constants={{"BLOCK": 1024}})


@registry.implements("square")
def squares():
    return [Square()]
"""


def checked(folder: Path, mask: str) -> PluginCheck:
    file = folder / "mine.py"
    file.write_text(KERNEL.format(mask=mask))
    return check_plugin(CheckRequest(str(file), database=str(folder / "none.db")))


def test_a_kernel_that_is_right_passes_on_the_gpu(tmp_path: Path) -> None:
    done = checked(tmp_path, "offsets < n")
    assert done.ok, done.as_data()
    verdicts = {each.name: each.verdict for each in done.outcomes}
    assert {name: verdicts[name] for name in ("numerics", "capture", "two streams", "tuned shapes")} == {
        "numerics": "passed", "capture": "passed", "two streams": "passed", "tuned shapes": "skipped",
    }  # fmt: skip


@pytest.mark.skipif(sanitizer.sanitizer() is None, reason="needs compute-sanitizer")
def test_a_kernel_that_writes_beyond_its_output_is_found(tmp_path: Path) -> None:
    done = checked(tmp_path, "offsets < n + 512")
    failed = {each.name for each in done.outcomes if each.verdict == "failed"}
    assert "numerics" in failed
    assert not done.ok
