"""transformers' own tests of the models that ``apply`` claims, as pytest runs them.

``CONFORMANCE_TRANSFORMERS`` is a checkout of transformers, or its source distribution, at the installed version. Where
it holds the tests of a model (tests/models/llama), those run. A source distribution holds only what they have in
common, ``ModelTesterMixin``: it then runs with a small configuration of ours.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import torch
import transformers

from .applied import hook

SOURCE = Path(os.environ["CONFORMANCE_TRANSFORMERS"])
APPLIED = os.environ.get("CONFORMANCE_APPLY") == "1"
_PACKAGE = "tests_of_transformers"
_MIXINS = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "gemma": {"num_key_value_heads": 1, "head_dim": 8},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 8},
    "mistral": {"num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "num_local_experts": 4},
    "phi": {},
    "phi3": {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 12, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    },
}  # fmt: skip
_SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _put_empty(name: str, mixin: str) -> None:
    """Put a module in the place of one that a source distribution lacks, with a mixin that has no tests."""
    stub = types.ModuleType(f"{_PACKAGE}.{name}")
    setattr(stub, mixin, type(mixin, (), {}))
    parent = types.ModuleType(stub.__name__.rpartition(".")[0])
    parent.__path__ = []
    sys.modules.update({parent.__name__: parent, stub.__name__: stub})


def _module(name: str) -> Any:
    """A module of transformers' tests, as part of a package whose name is not ours."""
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(SOURCE / "tests")]
        sys.modules[_PACKAGE] = package
        for missing, mixin in _MIXINS.items():
            if not (SOURCE / "tests" / f"{missing.replace('.', '/')}.py").is_file():
                _put_empty(missing, mixin)
    return importlib.import_module(f"{_PACKAGE}.{name}")


class SmallModel:
    """What ModelTesterMixin asks of a tester: sizes, a configuration, and inputs."""

    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.config_class = transformers.CONFIG_MAPPING[kind]

    def get_config(self) -> Any:
        named = self.config_class.attribute_map
        sizes = {name: value for name, value in _SIZES.items() if name not in named}
        return self.config_class(**{**sizes, **MODELS[self.kind]})

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        tokens = torch.randint(3, _SIZES["vocab_size"], (self.batch_size, self.seq_length))
        mask = torch.tril(torch.ones_like(tokens))
        return self.get_config(), {"input_ids": tokens, "attention_mask": mask}


def _classes(kind: str) -> tuple[Any, ...]:
    config = transformers.CONFIG_MAPPING[kind]
    autos = (transformers.AutoModel, transformers.AutoModelForCausalLM, transformers.AutoModelForSequenceClassification)
    found = [auto._model_mapping.get(config, None) for auto in autos]
    return tuple(one for one in found if one is not None)


def _common(kind: str) -> type[Any]:
    """A test class of what all models have in common, for one of them."""
    mixin = _module("test_modeling_common").ModelTesterMixin

    def set_up(self: Any) -> None:
        self.model_tester = SmallModel(kind)

    values = {"all_model_classes": _classes(kind), "setUp": set_up, "pipeline_model_mapping": {}}
    return type("CommonTest", (mixin, unittest.TestCase), values)


def _published(kind: str) -> list[type[Any]]:
    """The test classes of a model in a checkout, but those that load weights from a hub."""
    module = _module(f"models.{kind}.test_modeling_{kind}")
    return [
        one
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, unittest.TestCase)
        and one.__module__ == module.__name__
        and not name.endswith("IntegrationTest")
    ]


def _test_classes(kind: str) -> list[type[Any]]:
    whole = (SOURCE / f"tests/models/{kind}/test_modeling_{kind}.py").is_file()
    return _published(kind) if whole else [_common(kind)]


# pytest collects what a module holds: no class may have two names here
globals().update({f"{kind}__{one.__name__}": one for kind in MODELS for one in _test_classes(kind)})
if APPLIED:
    for model_class in {one for kind in MODELS for one in _classes(kind)}:
        hook(model_class)
    del model_class
