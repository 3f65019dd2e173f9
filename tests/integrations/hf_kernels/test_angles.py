"""Tables of cosines and sines are made once, and anew where those that there are cannot be used."""

from __future__ import annotations

import pytest
import torch


def test_tables_that_were_made_in_inference_mode_are_made_anew_for_a_gradient() -> None:
    from registry.integrations.hf_kernels.angles import tables_for

    angles = torch.randn(1, 8, 32).repeat(1, 1, 2)
    cos, sin, q = angles.cos(), angles.sin(), torch.randn(1, 4, 8, 64)
    with torch.inference_mode():
        made = tables_for(q, cos, sin)
        assert made is not None
        assert made.table.is_inference()
        assert tables_for(q, cos, sin) is made
    learning = tables_for(q, cos, sin)
    assert learning is not None
    assert not learning.table.is_inference()
    assert tables_for(q, cos, sin) is learning


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_tables_serve_every_layer(mode: type) -> None:
    from registry.integrations.hf_kernels.angles import tables_for

    angles = torch.randn(1, 8, 32).repeat(1, 1, 2)
    cos, sin, q = angles.cos(), angles.sin(), torch.randn(1, 4, 8, 64)
    with mode():
        assert tables_for(q, cos, sin) is tables_for(q, cos, sin) is not None
