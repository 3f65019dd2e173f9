"""Guards of compiled programs: most of what a call of one costs the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from torch._dynamo.guards import CheckFunctionManager

    from registry.integrations.transformers import apply

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")


def guards_a_layer(monkeypatch: pytest.MonkeyPatch, **how: Any) -> str:
    """The guards that one more layer adds, for a model as it is without ``how``."""
    texts: list[str] = []
    own = CheckFunctionManager.__init__

    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        texts.append(str(self.guard_manager))

    monkeypatch.setattr(CheckFunctionManager, "__init__", noting)
    model = tiny("llama", dtype=torch.bfloat16, hidden_size=128, intermediate_size=128, num_hidden_layers=2)
    if how:
        apply(model, **how)
    with torch.no_grad():
        torch.compile(model, backend="eager", fullgraph=True)(prompt(), use_cache=False)
    lines = max(texts, key=len).splitlines()
    guards = [line.split("#")[0].split("check_no_")[0] for line in lines]
    last = [guard for guard in guards if "_modules['layers']._modules['1']" in guard]
    return "\n".join(last)


@pytest.mark.thorough
@pytest.mark.parametrize(("quantize", "times"), [(None, 2.0), ("int4", 3.0)], ids=["dense", "int4"])
def test_a_layer_has_few_more_guards_than_as_transformers_has_it(
    quantize: Any, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = guards_a_layer(monkeypatch)
    torch._dynamo.reset()
    ours = guards_a_layer(monkeypatch, quantize=quantize)
    assert plain.count("\n") > 50
    assert ours.count("\n") < times * plain.count("\n")
    # what is known of a packed weight, a norm or a form is in one text or number
    for name in ("group_size", "in_features", ".bits", "__name__", "registry_form", "variance_epsilon"):
        assert name not in ours, name
    # a guard of a module's tensor takes a fifth of that of another object's
    tensors = [line for line in ours.splitlines() if "TENSOR_MATCH" in line and "registry_" in line]
    assert sum("._tensors." in line for line in tensors) == (6 if quantize else 2)
    assert not [line for line in tensors if "._weight." in line]
