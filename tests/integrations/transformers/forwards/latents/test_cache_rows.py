"""Static caches with latents and rotated parts side by side: what transformers does to a cache leaves it right."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ...tiny_models import cache_name, prompt, tiny
from .decoding import WIDTH, decoded, dynamic, filled, static, steps

if TYPE_CHECKING:  # see late_imports
    from transformers.cache_utils import StaticLayer

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.forwards.latents.cache_rows import LatentRows

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def one_layer() -> Any:
    return tiny("deepseek_v3", num_hidden_layers=1)


@pytest.mark.parametrize("made", [static, dynamic])
def test_caches_of_plain_models_go_on_in_applied_ones_and_back(made: Callable[..., Any]) -> None:
    model = one_layer()
    cache = filled(model, made(model))
    right = steps(model, cache, count=6)
    cache = filled(model, made(model))
    apply(model)
    with decoded() as calls:
        close(steps(model, cache, count=2), right[:, :2])
    # memory that others may know is not moved: its two tensors are joined at each token
    assert len(calls) == 2
    assert type(cache.layers[0]) is not LatentRows
    restore(model)
    close(steps(model, cache, count=2, first=2), right[:, 2:4])
    apply(model)
    close(steps(model, cache, count=2, first=4), right[:, 4:])


def test_rows_of_an_applied_model_go_on_in_the_plain_one() -> None:
    model = one_layer()
    right = steps(model, filled(model, static(model)), count=4)
    apply(model)
    cache = filled(model, static(model))
    assert isinstance(cache.layers[0], LatentRows)
    close(steps(model, cache, count=2), right[:, :2])
    copied = copy.deepcopy(cache)
    restore(model)
    close(steps(model, cache, count=2, first=2), right[:, 2:])
    assert isinstance(cache.layers[0], LatentRows)
    close(steps(model, copied, count=2, first=2), right[:, 2:])


@pytest.mark.thorough
@pytest.mark.usefixtures("no_programs")
def test_a_program_of_the_plain_model_goes_on_over_rows() -> None:
    model = one_layer()
    right = steps(model, filled(model, static(model)), count=4)
    apply(model)
    cache = filled(model, static(model))
    close(steps(model, cache, count=2), right[:, :2])
    restore(model)
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(steps(model, cache, count=2, first=2, step=step), right[:, 2:])


def reordered(cache: Any) -> None:
    cache.reorder_cache(torch.tensor([1, 1]))


def cropped(cache: Any) -> None:
    cache.crop(-3)


def reset(cache: Any) -> None:
    cache.reset()


def offloaded(cache: Any) -> None:
    cache.layers[0].offload()
    cache.layers[0].prefetch()


def other_keys(cache: Any) -> None:
    cache.layers[0].keys = 0.5 * cache.layers[0].keys


def other_values(cache: Any) -> None:
    cache.layers[0].values = 0.5 * cache.layers[0].values


@pytest.mark.parametrize(
    ("change", "stays"),
    [(reordered, True), (cropped, True), (reset, True), (offloaded, False), (other_keys, False), (other_values, False)],
)
def test_changes_of_a_cache_are_those_of_transformers_own(change: Callable[[Any], None], stays: bool) -> None:
    if change is cropped and not hasattr(StaticLayer, "crop"):
        pytest.skip("static caches of this version of transformers cannot be cropped")
    found = []
    for ours in (False, True):
        model = one_layer()
        if ours:
            apply(model)
        cache = filled(model, static(model))
        steps(model, cache, count=2)
        change(cache)
        layer = cache.layers[0]
        held = layer.keys.clone(), layer.values.clone(), int(layer.cumulative_length)
        with decoded() as calls:
            found.append((*held, steps(model, cache, count=2, first=2)))
        assert len(calls) == (2 if ours else 0)
        assert type(layer) is (LatentRows if ours and stays else StaticLayer)
        assert layer.keys.shape[-1] + layer.values.shape[-1] == WIDTH
    for own, other in zip(*found, strict=True):
        close(other, own)


def test_a_cache_that_returns_a_part_of_its_rows_is_joined() -> None:
    mask = torch.ones(2, 1, 1, 20, dtype=torch.bool)
    mask[0, ..., :4], mask[..., 12:] = False, False
    found = []
    for ours in (False, True):
        model = one_layer()
        if ours:
            apply(model)
        cache = filled(model, static(model))
        own = cache.update
        cache.update = lambda *given, own=own, **named: tuple(part[:, :, :20] for part in own(*given, **named))
        # the eager function adds a mask
        model.set_attn_implementation("registry" if ours else "sdpa")
        with torch.no_grad(), decoded() as calls:
            found.append(model(prompt()[:, :1], attention_mask=mask, **{cache_name(model): cache}).logits)
        assert calls == ([((40, 1, WIDTH), True)] if ours else [])
    close(found[1], found[0])


def test_a_cache_in_training_or_with_gradients_is_left() -> None:
    model = one_layer()
    apply(model)
    for training, learns in ((True, False), (False, True)):
        cache = static(model)
        with torch.set_grad_enabled(learns):
            model.train(training)(prompt(), **{cache_name(model): cache})
        assert type(cache.layers[0]) is StaticLayer


def test_a_cache_that_is_offloaded_is_left() -> None:
    model = one_layer()
    apply(model)
    cache, x = static(model), torch.zeros(1, 2, 64)
    given = {"attention_mask": None, "position_embeddings": model.model.rotary_emb(x, torch.arange(2)[None])}
    with torch.no_grad():
        model.model.layers[0].self_attn(hidden_states=x, **given, **{cache_name(model): LikeOffloaded(cache)})
    assert type(cache.layers[0]) is StaticLayer


class LikeOffloaded:
    """A cache that says that it is offloaded, which needs a GPU."""

    offloading = True

    def __init__(self, cache: Any) -> None:
        self.layers = cache.layers

    def update(self, key: torch.Tensor, value: torch.Tensor, index: int, **_: Any) -> Any:
        return self.layers[index].update(key, value)


def test_a_full_cache_is_told_as_by_the_plain_model() -> None:
    for ours in (False, True):
        model = one_layer()
        if ours:
            apply(model)
        cache = filled(model, static(model, 12))
        steps(model, cache, count=1)
        with pytest.raises(IndexError, match="out of"):
            steps(model, cache, count=1)
