"""The benchmark of a decoder's untuned ops times the C++ kernels beside torch's, and says what a call runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models import untuned_ops

SHAPES = """
fused_add_rms_norm:
  - {rows: [1, 3], cols: 64, weight: true, dtype: float32}
"""


def test_each_kernel_has_a_ratio_and_calls_run_the_one_in_cpp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few.yaml"
    file.write_text(SHAPES)
    found = untuned_ops.main(["--shapes", str(file), "--seconds", "0"])
    assert [*found] == [("fused_add_rms_norm", "cpp.rows")]
    (standing,) = found.values()
    assert len(standing.ratios) == 2
    assert all(ratio > 0 for ratio in standing.ratios)
    assert standing.chosen == 2
    assert "| fused_add_rms_norm | cpp.rows | 2 |" in capsys.readouterr().out
