"""Rotary positions by the op in applied models, and by transformers' own function in all others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import UnsupportedError

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from transformers.models.llama import modeling_llama

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.forwards import rotary

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of ops that rotations call, as they come."""
    seen: list[str] = []
    real: Any = vars(rotary)["call"]

    def noted(op: str, *arguments: Any) -> Any:
        seen.append(op)
        return real(op, *arguments)

    monkeypatch.setattr(rotary, "call", noted)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)
    return seen


@contextmanager
def noted(module: Any) -> Iterator[list[str]]:
    """The names of ops that a module calls, as they come."""
    seen: list[str] = []
    real: Any = vars(module)["call"]

    def call(op: str, *arguments: Any) -> Any:
        seen.append(op)
        return real(op, *arguments)

    module.call = call
    try:
        yield seen
    finally:
        module.call = real


def test_an_applied_model_calls_the_op_once_a_layer_and_other_models_never(calls: list[str]) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    assert apply(applied).replaced["rotary positions"] == ["model.rotary_emb"]
    calls.clear()
    with torch.no_grad():
        own = plain(prompt()).logits
        assert calls == []
        torch.testing.assert_close(applied(prompt()).logits, own, atol=1e-5, rtol=1e-4)
        assert calls == ["rotary_embedding"] * 2
    restore(applied)
    with torch.no_grad():
        assert torch.equal(applied(prompt()).logits, own)
    assert len(calls) == 2


def test_under_autocast_the_models_own_function_rotates(calls: list[str]) -> None:
    model = tiny("llama")
    apply(model)
    calls.clear()
    for grads in (True, False):
        with torch.set_grad_enabled(grads), torch.autocast("cpu", torch.bfloat16):
            model(prompt())
    assert calls == []


@pytest.mark.parametrize("positions", [None, torch.stack((torch.arange(11), torch.arange(11) * 2))])
@pytest.mark.few(1)
def test_where_gradients_are_needed_the_op_that_has_them_rotates(
    positions: torch.Tensor | None, calls: list[str]
) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    calls.clear()
    for model in (plain, applied):
        model(prompt(), position_ids=positions, labels=prompt()).loss.backward()
    # of each of two layers
    assert calls == ["apply_rotary"] * 2
    for (name, own), other in zip(plain.named_parameters(), applied.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, own.grad, atol=2e-6, rtol=2e-5, msg=lambda told, at=name: f"{at}: {told}"
        )


PAIRS = [("deepseek_v3", True), ("deepseek_v3", False), ("deepseek_v2", None)]
"""Families whose pairs are beside each other in what is rotated; DeepSeek-V3's configuration chooses."""


def of_pairs(family: str, interleaved: bool | None, dtype: torch.dtype = torch.float32) -> Any:
    return tiny(family, dtype, **({} if interleaved is None else {"rope_interleave": interleaved}))


@pytest.mark.parametrize(("family", "interleaved"), PAIRS)
@pytest.mark.few(1)
def test_pairs_beside_each_other_are_rotated_by_the_op_and_their_gradients_back(
    family: str, interleaved: bool | None
) -> None:
    plain, applied = of_pairs(family, interleaved), of_pairs(family, interleaved)
    assert apply(applied).replaced["rotary positions"] == ["model.rotary_emb"]
    with noted(rotary) as calls:
        found = [model(prompt(), labels=prompt()) for model in (plain, applied)]
        torch.testing.assert_close(found[1].loss, found[0].loss, atol=1e-5, rtol=1e-4)
        assert calls == ["apply_rotary"] * 2
        for one in found:
            one.loss.backward()
    for (name, own), other in zip(plain.named_parameters(), applied.parameters(), strict=True):
        if own.grad is not None:
            torch.testing.assert_close(
                other.grad, own.grad, atol=2e-6, rtol=2e-5, msg=lambda told, at=name: f"{at}: {told}"
            )
    restore(applied)
    with torch.no_grad():
        assert torch.equal(applied(prompt()).logits, plain(prompt()).logits)


@pytest.mark.parametrize(("family", "interleaved"), PAIRS)
@pytest.mark.few(1)
def test_rotated_queries_and_keys_of_one_head_are_the_models_own(family: str, interleaved: bool | None) -> None:
    model = of_pairs(family, interleaved)
    file = sys.modules[type(model).__module__]
    function = "apply_rotary_emb" if interleaved is None else FUNCTIONS[interleaved]
    own = getattr(file, function)
    own = getattr(own, "registry_own", own)
    positions = torch.stack((torch.arange(5), torch.arange(5) * 3))
    for dtype in (torch.float32, torch.bfloat16):
        # of several heads, and one for all of them, in a memory of others' beside them
        q, k = torch.randn(2, 5, 4, 24, dtype=dtype)[..., 16:].transpose(1, 2), torch.randn(2, 1, 5, 8, dtype=dtype)
        right = own(q, k, *angles(model.model.rotary_emb(q, positions)))
        before = q.clone(), k.clone()
        apply(model)
        with noted(rotary) as calls, torch.no_grad():
            found = getattr(file, function)(q, k, *angles(model.model.rotary_emb(q, positions)))
        restore(model)
        assert calls == ["rotary_embedding"]
        error = {torch.float32: 1e-6, torch.bfloat16: 1.6e-2}[dtype]
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, atol=error, rtol=error)
        assert torch.equal(q, before[0])
        assert torch.equal(k, before[1])


FUNCTIONS = {True: "apply_rotary_pos_emb_interleave", False: "apply_rotary_pos_emb"}


def angles(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def test_frozen_projections_and_transforms_of_torch(calls: list[str]) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    for model in (plain, applied):
        model.requires_grad_(False)
        model.model.layers[0].self_attn.k_proj.requires_grad_(True)
        model(prompt(), labels=prompt()).loss.backward()
    own, other = (model.model.layers[0].self_attn.k_proj.weight.grad for model in (plain, applied))
    torch.testing.assert_close(other, own, atol=2e-6, rtol=2e-5)
    calls.clear()
    embedded = applied.get_input_embeddings()(prompt())
    found = [
        torch.func.grad(lambda x, of=model: of(inputs_embeds=x, use_cache=False).logits.square().mean())(embedded)
        for model in (plain, applied.requires_grad_(True))
    ]
    torch.testing.assert_close(found[1], found[0], atol=2e-6, rtol=2e-4)
    assert calls == []


def test_a_second_derivative_of_a_rotation_is_an_error(calls: list[str]) -> None:
    model = tiny("llama")
    apply(model)
    calls.clear()
    q, k = (torch.randn(1, heads, 5, 16, requires_grad=True) for heads in (4, 2))
    cos, sin = model.model.rotary_emb(q, torch.arange(5)[None])
    query, key = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    (slope,) = torch.autograd.grad(query.square().sum() + key.sum(), q, create_graph=True)
    assert calls == ["apply_rotary"]
    with pytest.raises(UnsupportedError, match="apply_rotary: its gradient was differentiated again"):
        slope.sum().backward()


def test_angles_that_are_learnt_keep_their_gradient(calls: list[str]) -> None:
    model = tiny("llama")
    apply(model)
    q, k = torch.randn(1, 4, 5, 16, requires_grad=True), torch.randn(1, 2, 5, 16)
    cos, sin = model.model.rotary_emb(q, torch.arange(5)[None])
    learnt = torch.ones((), requires_grad=True)
    angles = (cos * learnt, sin * learnt)
    angles[0].registry_table = rotary.tables_of(angles, 1)  # type: ignore[attr-defined]
    calls.clear()
    modeling_llama.apply_rotary_pos_emb(q, k, *angles)[0].square().sum().backward()
    torch.testing.assert_close(learnt.grad, 2 * q.detach().square().sum(), rtol=1e-4, atol=0.0)
    assert calls == []


def test_positions_of_each_sequence_and_of_all_rotate_alike(calls: list[str]) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    for positions in (torch.arange(11)[None] + 3, torch.stack((torch.arange(11), torch.arange(11) * 2))):
        with torch.no_grad():
            own, other = (model(prompt(), position_ids=positions).logits for model in (plain, applied))
        torch.testing.assert_close(other, own, atol=1e-5, rtol=1e-4)
    assert "rotary_embedding" in calls


def test_what_a_projection_returned_is_not_rotated_in_place(calls: list[str]) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    found: list[torch.Tensor] = []
    for model in (plain, applied):
        model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda _, __, output: found.append(output))
        with torch.no_grad():
            model(prompt())
    assert "rotary_embedding" in calls
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_another_rotation_stays_with_the_reason(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: own(q, k, cos, -sin))
    model = tiny("llama")
    with torch.no_grad():
        before = model(prompt()).logits
        report = apply(model)
        torch.testing.assert_close(model(prompt()).logits, before, atol=1e-5, rtol=1e-4)
    (reason,) = (reason for reason, names in report.left.items() if names == ["model.rotary_emb"])
    assert reason.startswith("rotary positions: it computes something else: an error of")
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb_vision", own, raising=False)
    (reason,) = (reason for reason in apply(tiny("llama")).left if "rotary" in reason)
    assert reason == "rotary positions: its file has several rotations: apply_rotary_pos_emb_vision"


def test_the_last_restored_model_puts_its_files_function_back() -> None:
    one, other = tiny("llama"), tiny("llama")
    own = getattr(modeling_llama.apply_rotary_pos_emb, "registry_own", modeling_llama.apply_rotary_pos_emb)
    apply(one)
    apply(other)
    restore(one)
    assert modeling_llama.apply_rotary_pos_emb is not own
    vars(modeling_llama)["registry_rotaries"].intersection_update([other.model.rotary_emb])
    restore(other)
    assert modeling_llama.apply_rotary_pos_emb is own
