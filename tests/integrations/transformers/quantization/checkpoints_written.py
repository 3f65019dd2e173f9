"""Small models' checkpoints in the layouts of GPTQ, AWQ and compressed-tensors, and the weights that they stand for.

Written bit by bit from the formats' descriptions, without the code that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

Tensors = dict[str, torch.Tensor]
IDS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79]])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def llama(dtype: torch.dtype = torch.bfloat16, **changes: Any) -> LlamaForCausalLM:
    """A random Llama of one layer, 64 wide, with biases in its attention."""
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True, "max_position_embeddings": 64}
    torch.manual_seed(0)
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "initializer_range": 0.2, **changes}))
    return model.to(dtype).eval()


def layers(model: torch.nn.Module) -> list[str]:
    """Names of the linear layers but the output embeddings."""
    return [name for name, module in model.named_modules() if type(module) is torch.nn.Linear and name != "lm_head"]


def packed_words(values: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Integers ``[rows, columns]`` as int32 ``[rows, columns * bits / 32]``: field i of a word is column order[i]."""
    count = 32 // bits
    fields = values.long().reshape(values.shape[0], -1, count)
    words = sum(fields[:, :, column] << (bits * place) for place, column in enumerate(order or range(count)))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def drawn(n: int, k: int, groups: int, bits: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Integers ``[n, k]``, zero points ``[n, groups]`` and scales ``[n, groups]`` in float16."""
    q = torch.randint(0, 2**bits, (n, k), generator=generator)
    zeros = torch.randint(0, 2**bits, (n, groups), generator=generator)
    # a neighbour's scale is wrong by a factor
    scales = (0.02 + 0.05 * torch.rand(n, groups, generator=generator)) * (1 + 2 * (torch.arange(groups) % 2))
    return q, zeros, (scales * 4 / 2**bits).half()


def gptq_layer(
    q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, g_idx: torch.Tensor, bits: int, less: int
) -> Tensors:
    """``less`` is 1 for version 1 of the format: 1 is taken from words of zero points as a whole."""
    stored = packed_words(zeros.T, bits).long()
    ones = sum(1 << place for place in range(0, 32, bits))
    wrapped = (stored - less * ones) % 2**32
    return {
        "qweight": packed_words(q, bits).T.contiguous(),
        "qzeros": torch.where(wrapped >= 2**31, wrapped - 2**32, wrapped).to(torch.int32),
        "scales": scales.T.contiguous(),
        "g_idx": g_idx.to(torch.int32),
    }


def awq_layer(q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> Tensors:
    return {
        "qweight": packed_words(q.T, 4, AWQ_ORDER),
        "qzeros": packed_words(zeros.T, 4, AWQ_ORDER),
        "scales": scales.T.contiguous(),
    }


def awq_gemv_layer(q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> Tensors:
    """Packed along K; scales and words of zero points are filled up to whole words."""
    filled = (0, -zeros.shape[1] % 8)
    return {
        "qweight": packed_words(q, 4),
        "qzeros": packed_words(torch.nn.functional.pad(zeros, filled), 4),
        "scales": torch.nn.functional.pad(scales, filled),
    }


def compressed_layer(q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, bits: int) -> Tensors:
    """pack-quantized: both kinds of integers are stored from 0."""
    return {
        "weight_packed": packed_words(q, bits),
        "weight_zero_point": packed_words(zeros.T, bits).T.contiguous(),
        "weight_scale": scales,
        "weight_shape": torch.tensor(q.shape),
    }


def int8_layer(q: torch.Tensor, scales: torch.Tensor) -> Tensors:
    """int-quantized: int8 around 0, without zero points."""
    return {"weight": (q - 128).to(torch.int8), "weight_scale": scales}


Written = tuple[Path, Tensors]
"""The checkpoint's folder, and its weights by the layers' names, as dense tensors in float16."""


def written(
    folder: Path,
    settings: dict[str, Any],
    layer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any],
) -> Written:
    """A Llama in float16 whose linear layers are random, packed by ``layer(q, zeros, scales, g_idx)``.

    ``settings`` is its quantization_config, with the numbers "bits" and "size" of a group beside it.
    """
    bits, size, shuffled, middle = (settings.pop(name) for name in ("_bits", "_size", "_shuffled", "_symmetric"))
    model = llama(torch.float16)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    generator, dense = torch.Generator().manual_seed(1), {}
    for name in layers(model):
        n, k = state.pop(f"{name}.weight").shape
        g_idx = torch.arange(k) // size
        if shuffled:
            g_idx = g_idx[torch.randperm(k, generator=generator)]
        q, zeros, scales = drawn(n, k, k // size, bits, generator)
        if middle:
            zeros = torch.full_like(zeros, 2 ** (bits - 1))
        weight = (q - zeros[:, g_idx]).double() * scales.double()[:, g_idx]
        dense[name] = weight.half()
        state |= {f"{name}.{part}": tensor for part, tensor in layer(q, zeros, scales, g_idx).items()}
    save_file({name: part.contiguous() for name, part in state.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return folder, dense


def gptq(folder: Path, *, bits: int = 4, size: int = 32, shuffled: bool = False, version: str = "gptq") -> Written:
    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": shuffled, "sym": False,
        "checkpoint_format": version, "_bits": bits, "_size": size, "_shuffled": shuffled, "_symmetric": False,
    }  # fmt: skip
    less = 1 if version == "gptq" else 0
    return written(folder, settings, lambda q, zeros, scales, g_idx: gptq_layer(q, zeros, scales, g_idx, bits, less))


def awq(folder: Path, *, size: int = 32, version: str = "gemm") -> Written:
    settings = {
        "quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": version,
        "_bits": 4, "_size": size, "_shuffled": False, "_symmetric": False,
    }  # fmt: skip
    layer = awq_layer if version == "gemm" else awq_gemv_layer
    return written(folder, settings, lambda q, zeros, scales, _: layer(q, zeros, scales))


def compressed_tensors(folder: Path, *, bits: int = 4, size: int = 32, kind: str = "pack-quantized") -> Written:
    """int-quantized has one scale a row."""
    whole = kind == "int-quantized"
    weights = {"num_bits": bits, "type": "int", "symmetric": whole, "strategy": "channel" if whole else "group"}
    group = {
        "targets": ["Linear"],
        "weights": weights | ({} if whole else {"group_size": size}),
        "input_activations": None,
    }
    settings = {
        "quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed",
        "_bits": bits, "_size": size, "_shuffled": False, "_symmetric": whole,
    }  # fmt: skip
    if whole:
        return per_row(folder, settings)
    return written(folder, settings, lambda q, zeros, scales, _: compressed_layer(q, zeros, scales, bits))


def per_row(folder: Path, settings: dict[str, Any]) -> Written:
    """int8 with the first group's scale for all of a row."""
    folder, _ = written(folder, settings, lambda q, _, scales, __: int8_layer(q, scales[:, :1].contiguous()))
    state = load_file(folder / "model.safetensors")
    dense = {}
    for name in (key.removesuffix(".weight_scale") for key in state if key.endswith(".weight_scale")):
        dense[name] = (state[f"{name}.weight"].double() * state[f"{name}.weight_scale"].double()).half()
    return folder, dense


def dense_model(written: Written) -> LlamaForCausalLM:
    """The model that a checkpoint stands for, in float16, with dense weights."""
    folder, dense = written
    model = llama(torch.float16)
    state = {
        name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name in model.state_dict()
    }
    state |= {f"{name}.weight": weight for name, weight in dense.items()}
    model.load_state_dict(state)
    return model
