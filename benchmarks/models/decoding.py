"""Decode steps and prompts of a model in the forms in which a user runs them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from .timing import Step

FORMS = ("eager", "graph", "compile", "reduce-overhead", "max-autotune", "prefill")
UNCOMPILED = ("eager", "graph", "prefill")
CONTEXT, FILLED = 1024, 512


def cache_name(model: Any) -> str:
    """The name of the argument that is the cache; it differs from version to version."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Decoding:
    """One model's decode steps: each call is the token after ``filled`` ones, whose keys and values are random.

    context   the tokens that the cache has room for
    settings  what Inductor's configuration is while the model is compiled, beside its defaults
    logits    those of the step, equal for equal models
    First steps run here, as they are: kernels that are compiled or tuned at their first call are so outside of graphs.
    """

    def __init__(
        self,
        model: Any,
        batch: int,
        settings: Mapping[str, Any] | None = None,
        *,
        context: int = CONTEXT,
        filled: int = FILLED,
    ) -> None:
        self.model, self.settings, self.filled = model, dict(settings or {}), filled
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=context)
        generator = torch.Generator(model.device).manual_seed(0)
        self.token = torch.randint(
            3, model.config.vocab_size, (batch, 1), device=model.device, generator=generator
        )  # fmt: skip
        with torch.no_grad():
            self.step(model)()
            for layer in self.cache.layers:
                for tensor in (layer.keys, layer.values):
                    assert isinstance(tensor, torch.Tensor)
                    # drawn apart: what a view gets depends on its strides
                    tensor.copy_(
                        torch.empty_like(tensor, memory_format=torch.contiguous_format).normal_(generator=generator)
                    )
            self.rewind()
            self.logits: torch.Tensor = self.step(model)().float()
        self.rewind()

    def rewind(self) -> None:
        """Forget the tokens after the first ``filled``, whose slots are written again."""
        for layer in self.cache.layers:
            length = getattr(layer, "cumulative_length", None)
            if isinstance(length, torch.Tensor):
                length.fill_(self.filled)
            elif length is not None:
                layer.cumulative_length = self.filled
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = self.filled

    def step(self, forward: Callable[..., Any]) -> Step:
        """A step by ``forward``."""
        token, given = self.token, {cache_name(self.model): self.cache}
        return lambda: forward(token, **given).logits

    def in_form(self, form: str) -> Step:
        """The step in a form; compiled, captured and run some times."""
        settings: Any = contextlib.nullcontext()
        if self.settings:
            from torch._inductor import config as inductor_config

            settings = inductor_config.patch(self.settings)
        with settings:
            if form == "eager":
                step = self.step(self.model)
            elif form == "graph":
                step = self._captured(self.step(self.model))
            else:
                mode = None if form == "compile" else form
                step = self.step(torch.compile(self.model, mode=mode, fullgraph=True, dynamic=False))
            for _ in range(4):
                self.rewind()
                step()
        return step

    def _captured(self, step: Step) -> Step:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        self.rewind()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def prefill(model: Any, batch: int) -> Step:
    """A prompt of ``FILLED`` tokens into an empty cache, with the last token's logits."""
    tokens = torch.randint(3, model.config.vocab_size, (batch, FILLED), device=model.device)

    def step() -> Any:
        given = {cache_name(model): transformers.DynamicCache(config=model.config)}
        return model(tokens, **given, logits_to_keep=1).logits

    for _ in range(2):
        step()
    return step
