"""Rotation and append to a static cache by one op, eager and compiled; for other caches as the model has them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import OutOfRangeError, RegistryError

from .op_counts import OpCounts
from .tiny_models import cache_name, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers
    from torch._inductor.utils import run_and_get_code

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.forwards import cache_appends

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")

PART = "rotary positions with the append to a static cache"


def steps(model: Any, step: Any, batch: int = 2, new: int = 1, **how: Any) -> tuple[torch.Tensor, Any]:
    """Logits of three steps of ``new`` tokens after a prompt, and the cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    given = {cache_name(model): cache}
    tokens = prompt(batch)
    with torch.no_grad():
        model(tokens, **given)
        found = [step(tokens[:, new * at : new * (at + 1)], **given, **how).logits for at in range(3)]
    return torch.cat(found, 1), cache


def same(found: tuple[torch.Tensor, Any], right: tuple[torch.Tensor, Any]) -> None:
    """Equal logits, keys, values and lengths."""
    torch.testing.assert_close(found[0], right[0], atol=1e-5, rtol=1e-4)
    for one, other in zip(found[1].layers, right[1].layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(one.values, other.values, atol=1e-5, rtol=1e-4)
        assert int(one.cumulative_length) == int(other.cumulative_length)


@pytest.mark.parametrize(
    ("family", "batch", "new"),
    [
        ("llama", 3, 1),
        pytest.param("llama", 1, 1, marks=pytest.mark.thorough),
        pytest.param("llama", 2, 3, marks=pytest.mark.thorough),
        *(pytest.param(family, 2, 1, marks=pytest.mark.thorough) for family in ("qwen3", "phi3", "mixtral", "gemma3")),
    ],
)
@pytest.mark.thorough
def test_a_compiled_step_appends_by_one_op_a_layer(family: str, batch: int, new: int) -> None:
    plain, applied, counts = tiny(family), tiny(family), OpCounts()
    assert sorted(apply(applied).replaced[PART]) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    step = torch.compile(applied, fullgraph=True, backend=counts)
    same(steps(applied, step, batch, new), steps(plain, plain, batch, new))
    # the first layers of gemma3 have caches of a window
    full = sum(
        kind == "full_attention" for kind in getattr(plain.config, "layer_types", None) or ["full_attention"] * 2
    )
    assert counts.graphs[0]["rotary_kv_append"] == full
    assert counts.graphs[0]["rotary_embedding"] == 0


def test_eager_steps_append_by_the_op_and_other_caches_and_attentions_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, applied = (tiny("llama", num_hidden_layers=1) for _ in range(2))
    apply(applied)
    right, seen = steps(plain, plain), []
    real: Any = vars(cache_appends)["call"]
    monkeypatch.setattr(cache_appends, "call", lambda op, *given: (seen.append(op), real(op, *given))[1])
    same(steps(applied, applied), right)
    # the first call makes the cache
    assert seen == ["rotary_kv_append"] * 3
    with torch.no_grad():
        own, other = (model(prompt()).logits for model in (plain, applied))
    torch.testing.assert_close(other, own, atol=1e-5, rtol=1e-4)
    learnt = steps_with_gradients(plain), steps_with_gradients(applied)
    torch.testing.assert_close(learnt[1], learnt[0], atol=1e-6, rtol=1e-4)
    applied.set_attn_implementation("sdpa")
    same(steps(applied, applied), right)
    assert len(seen) == 3
    restore(applied)
    assert type(applied.model.layers[0].self_attn) is type(plain.model.layers[0].self_attn)


def steps_with_gradients(model: Any) -> torch.Tensor:
    """The gradient of a weight through three tokens over a filled cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    given = {cache_name(model): cache}
    with torch.no_grad():
        model(prompt(), **given)
    model(prompt()[:, :3], **given).logits.square().sum().backward()
    found: torch.Tensor = model.model.layers[0].self_attn.q_proj.weight.grad
    return found


@pytest.mark.thorough
def test_layers_that_are_compiled_one_by_one_append_by_themselves() -> None:
    plain, applied, counts = tiny("llama"), tiny("llama"), OpCounts()
    apply(applied)
    for layer in applied.model.layers:
        layer.compile(fullgraph=True, backend=counts)
    same(steps(applied, applied), steps(plain, plain))
    assert {one["rotary_kv_append"] for one in counts.graphs} == {0}


class KeysDoubled:
    """In the place of a cache: it gets other keys than the rotation returned, as of models that normalise them then."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def update(self, key: torch.Tensor, *given: Any, **others: Any) -> Any:
        return self.cache.update(2 * key, *given, **others)


class OtherLayer(KeysDoubled):
    """In the place of a cache: keys go to the other one of its two layers."""

    def update(self, key: torch.Tensor, *given: Any, **others: Any) -> Any:
        value, layer, *rest = given
        return self.cache.update(key, value, 1 - layer, *rest, **others)


def changing(own: Any, name: str, kind: type[KeysDoubled]) -> Any:
    """A forward of attention that changes its cache, the argument ``name``."""

    def forward(self: Any, hidden_states: torch.Tensor, position_embeddings: Any = None, **kwargs: Any) -> Any:
        kwargs[name] = kind(kwargs[name])
        return own(self, hidden_states, position_embeddings, **kwargs)

    return forward


@pytest.mark.thorough
def test_attention_that_changes_what_was_rotated_stays_and_after_apply_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, late = tiny("llama"), tiny("llama")
    name, attention = cache_name(model), type(model.model.layers[0].self_attn)
    assert PART in apply(late).replaced
    changed = changing(attention.forward, name, KeysDoubled)
    changed.__signature__ = inspect.signature(attention.forward)
    monkeypatch.setattr(attention, "forward", changed)
    assert PART not in apply(model).replaced
    with pytest.raises(RegistryError, match="changes rotated queries or keys"):
        steps(late, torch.compile(late, fullgraph=True, backend=OpCounts()))


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [1, 3])
def test_inductor_writes_nothing_between_a_layers_ops(batch: int) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    programs: list[str] = []
    compiled = torch.compile(applied, fullgraph=True)

    def step(*args: Any, **kwargs: Any) -> Any:
        found, code = run_and_get_code(compiled, *args, **kwargs)
        programs.extend(code)
        return found

    same(steps(applied, step, batch), steps(plain, plain, batch))
    calls = [line for line in programs[0].splitlines() if line.startswith("        cpp_fused")]
    # the embedding, cosines and sines, and the lengths of all layers' caches
    assert len(calls) == 3, calls


@pytest.mark.parametrize("without_cache", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_prompts_of_any_length_are_one_program(without_cache: bool) -> None:
    plain, applied = (tiny("llama", num_hidden_layers=1) for _ in range(2))
    apply(applied)
    compiled = torch.compile(applied, fullgraph=True, dynamic=True, backend=OpCounts())
    found = []
    for model, step in ((plain, plain), (applied, compiled)):
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        given = {cache_name(model): cache}
        with torch.no_grad():
            model(prompt(), **given)
            logits = [step(prompt()[:, :new], **given).logits for new in (3, 5)]
            if without_cache:  # which is a program of its own
                logits.append(step(prompt()[:, :7], use_cache=False).logits)
        found.append((torch.cat(logits, 1), cache))
    same(found[1], found[0])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_layer_in_two_places_appends_twice_to_its_layer_of_the_cache(compiled: bool) -> None:
    found = []
    for applied in (False, True):
        model = tiny("llama")
        model.model.layers[1] = model.model.layers[0]
        if applied:
            assert PART in apply(model).replaced
        found.append(steps(model, torch.compile(model, backend="eager") if applied and compiled else model))
    assert [int(layer.cumulative_length) for layer in found[0][1].layers] == [28, 0]
    same(found[1], found[0])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_attention_may_append_to_another_layer_of_the_cache_than_its_own(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, applied = tiny("llama"), tiny("llama")
    name, attention = cache_name(plain), type(plain.model.layers[0].self_attn)
    changed = changing(attention.forward, name, OtherLayer)
    changed.__signature__ = inspect.signature(attention.forward)
    monkeypatch.setattr(attention, "forward", changed)
    assert PART in apply(applied).replaced
    step = torch.compile(applied, backend="eager") if compiled else applied
    same(steps(applied, step), steps(plain, plain))


def test_a_model_that_runs_within_another_counts_its_own_tokens() -> None:
    """A draft model in a hook, for instance."""
    found = []
    for applied in (False, True):
        outer, inner = tiny("llama"), tiny("llama")
        seen: list[torch.Tensor] = []
        if applied:
            apply(outer)
            apply(inner)
        cache = transformers.StaticCache(config=inner.config, max_cache_len=32)
        given = {cache_name(inner): cache}
        inner(prompt(), **given)
        outer.model.layers[0].register_forward_hook(
            lambda *_, draft=inner, how=given, kept=seen: kept.extend(
                draft(prompt()[:, at : at + 1], **how).logits for at in range(2)
            )
        )
        with torch.no_grad():
            seen.append(outer(prompt(), use_cache=False).logits)
        found.append((torch.cat(seen, 1), cache))
    same(found[1], found[0])


@pytest.mark.thorough
def test_generate_compiles_its_steps_and_makes_the_plain_models_tokens() -> None:
    found = []
    for applied in (False, True):
        model = tiny("llama")
        if applied:
            apply(model)
        how = {"cache_implementation": "static", "disable_compile": not applied}
        found.append(model.generate(prompt(), max_new_tokens=8, do_sample=False, **how).tolist())
    assert found[0] == found[1]


def test_a_full_cache_is_told_before_anything_is_written() -> None:
    applied = tiny("llama")
    apply(applied)
    cache = transformers.StaticCache(config=applied.config, max_cache_len=9)
    tokens, given = prompt(2)[:, :8], {cache_name(applied): cache}
    with torch.no_grad():
        applied(tokens, **given)
        applied(tokens[:, :1], **given)
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        with pytest.raises(OutOfRangeError, match="a StaticCache of 9 tokens has 9, and 1 are new") as told:
            applied(tokens[:, :1], **given)
    assert "max_cache_len" in str(told.value.hint)
    for (keys, values), layer in zip(kept, cache.layers, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
