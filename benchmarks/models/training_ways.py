"""The models of the benchmark of training steps: as they are, by Liger's kernels, by the registry's ops."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers.models.llama import modeling_llama

from registry.integrations.transformers import apply

from .timing import Step, wait

LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}


class Trained:
    """A way's model. What its kernels have replaced in transformers' module for Llama holds only while it runs."""

    def __init__(self, way: str, sizes: dict[str, Any], layers: int, device: torch.device) -> None:
        config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers)
        torch.manual_seed(0)
        before, held = dict(vars(modeling_llama)), _allocated()
        with device:
            self.model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.bfloat16, attn_implementation="sdpa"
            ).train()
        space = vars(modeling_llama)
        try:
            if way == "liger":
                put_liger(self.model)
            elif way == "apply":
                print(f"apply:\n{apply(self.model)}", flush=True)
        finally:
            self._patches = {name: space[name] for name, own in before.items() if space[name] is not own}
            space.update({name: before[name] for name in self._patches})
        self.weights_bytes = _allocated() - held

    @contextmanager
    def patched(self) -> Iterator[None]:
        """A context in which transformers' module has what this way has put into it."""
        space = vars(modeling_llama)
        before = {name: space[name] for name in self._patches}
        space.update(self._patches)
        try:
            yield
        finally:
            space.update(before)

    def step(self, form: str, tokens: torch.Tensor) -> Step:
        """A training step, which returns its loss."""
        forward = torch.compile(self.model, dynamic=False) if form == "compile" else self.model

        def step() -> torch.Tensor:
            with self.patched():
                self.forget()
                loss: torch.Tensor = forward(tokens, labels=tokens, use_cache=False).loss
                loss.backward()
            return loss.detach()

        return step

    def forget(self) -> None:
        """Drop the gradients."""
        self.model.zero_grad(set_to_none=True)

    def peak_gib(self, step: Step) -> float | None:
        """The memory that a step takes at most, with this model's weights and without other models."""
        if not torch.cuda.is_available():
            return None
        self.forget()
        wait()
        others = _allocated() - self.weights_bytes
        torch.cuda.reset_peak_memory_stats()
        step()
        wait()
        return float((torch.cuda.max_memory_allocated() - others) / 2**30)


def put_liger(model: Any) -> None:
    """Let a model run by Liger's kernels, in transformers' module for Llama, too."""
    importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_llama(model=model)


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
