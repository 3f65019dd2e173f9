"""The benchmark of a model's last layer: its table, and that its forms are one loss."""

from __future__ import annotations

import pytest
import torch

from benchmarks.racing.fused_linear_loss import LossForm, both, main, of_registry, of_torch, table


def test_forms_compute_one_loss() -> None:
    values = torch.randn(5, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True), torch.randint(20, (5,))
    torch.testing.assert_close(of_registry(*values), of_torch(*values))
    for loss in (of_registry, of_torch):
        both(loss, values)
    assert values[0].grad is None


def test_a_form_that_cannot_run_is_a_row_with_its_reason() -> None:
    lines = table([LossForm("registry", 12.5, 40.25, 512.0, 2048.0), LossForm("Liger", fault="no module")]).splitlines()
    assert lines[2:] == ["| registry | 12.5 | 512 | 40.25 | 2048 |", "| Liger | no module |  |  |  |"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures where there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err
