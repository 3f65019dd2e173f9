"""Calls in other forms on a GPU: the results of torch, and a captured call that replays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import registry

from ..contracts.forms.test_forms import FORMS, called


def on_device(value: Any) -> Any:
    """Tensors of numbers in float32, on the GPU."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.cuda().float() if value.is_floating_point() else value.cuda()


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_another_form_is_torchs(form: str) -> None:
    op, args, attributes, theirs = FORMS[form]
    given = [on_device(one) for one in args]
    torch.testing.assert_close(called(op, *given, **attributes), theirs(*given))


def test_a_missing_weight_and_an_offset_are_captured() -> None:
    x, weight = torch.randn(64, 512, device="cuda"), torch.randn(512, device="cuda")

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        return registry.call("rms_norm", x), registry.call("rms_norm", x, weight, offset=1.0)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    x.normal_()
    weight.normal_()
    graph.replay()
    unit = torch.nn.functional.rms_norm(x, (512,), eps=1e-6)
    torch.testing.assert_close(outputs, (unit, unit * (1 + weight)))
