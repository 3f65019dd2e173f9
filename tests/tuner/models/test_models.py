"""Problems derived from a model's config: by hand for known models, and by what transformers builds from a config."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from registry.discovery.catalog import Catalog
from registry.errors import InvalidArgumentError
from registry.nn.packed_linear import product_op
from registry.packed import quantize
from registry.problem import Problem
from registry.tuner.models.derive import Derived, derive, described
from registry.tuner.models.names import config_of, names
from registry.tuner.models.reading import decoder_of
from registry.tuner.models.workload import NEW_TOKENS, Quantization, Workload
from registry.tuner.shapes.shapes import read_shapes
from registry.tuner.shapes.written import write_shapes

ONE = Workload(batch=(4,), context=(512,))


@pytest.fixture(scope="module")
def box() -> Catalog:
    return Catalog()


def derived(box: Catalog, model: str, workload: Workload = ONE, devices: int = 1) -> Derived:
    return derive(described(model, devices), workload, box)


def counted(found: Derived, op: str, *names: str) -> dict[tuple[Any, ...], int]:
    """The named dimensions of an op's problems, and their calls."""
    return {
        tuple(problem.dims[name] for name in names): found.shapes.counts[problem]
        for problem in found.shapes.problems.get(op, ())
    }


def test_every_model_in_the_box_has_problems_that_its_ops_accept(box: Catalog) -> None:
    assert {"llama-3.1-8b", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b-v0.1", "gpt2", "deepseek-v3"} <= set(names())
    for name in names():
        assert "linear" in derived(box, name).shapes.problems
        # what training needs has gradients
        trained = derived(box, name, Workload((1,), (128,), training=True)).shapes.problems
        assert {"linear_backward", "embedding_backward"} <= trained.keys()
        # logits that are capped before the loss are made; gradients in float16 wait for the loss scale
        losses = (
            {"cross_entropy", "cross_entropy_backward"},
            {"fused_linear_cross_entropy", "fused_linear_cross_entropy_backward"},
            {"fused_linear_cross_entropy_gradients"},
        )
        half = Workload((1,), (128,), dtype="float16", training=True)
        for own, found in ((2, trained), (1, derived(box, name, half).shapes.problems)):
            wanted = losses[0 if name.startswith("gemma-2") else own]
            assert found.keys() & set().union(*losses) == wanted
            assert "fused_add_rms_norm" not in found


def test_training_has_both_masks_of_eager_and_of_traced_models(box: Catalog) -> None:
    found = derived(box, "gemma-2-9b", Workload((1,), (8192,), training=True))
    for op in ("attention", "attention_backward"):
        forms = set(counted(found, op, "causal", "mask", "span"))
        # a mask of bools holds the window, too
        assert forms == {(True, "none", 4096), (True, "none", False), (False, "bool", False)}


def test_a_prompt_and_decode_steps_of_llama_by_hand(box: Catalog) -> None:
    found = derived(box, "llama-3.1-8b")
    prompt, steps = 32, 32 * NEW_TOKENS
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    assert counted(found, "linear", "m", "n", "k") == {
        **{(2048, n, k): prompt for n, k in shapes},
        **{(4, n, k): steps for n, k in shapes},
        (4, 128256, 4096): 1 + NEW_TOKENS,
    }
    assert counted(found, "silu_and_mul", "rows", "cols") == {(2048, 14336): prompt, (4, 14336): steps}
    assert counted(found, "rms_norm", "rows", "cols") == {(2048, 4096): 1, (4, 4096): NEW_TOKENS}
    assert counted(found, "fused_add_rms_norm", "rows", "cols") == {(2048, 4096): 64, (4, 4096): 2 * steps}
    assert counted(found, "attention", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "causal") == {
        (4, 32, 8, 512, 512, 128, True): prompt
    }
    assert counted(found, "attention_decode", "batch", "q_len", "kv_len", "page") == {(4, 1, 512, False): steps}
    # over a StaticCache, over others rotary_embedding
    assert counted(found, "rotary_kv_append", "batch", "heads", "kv_heads", "q_len", "kv_len", "positions") == {
        (4, 32, 8, 1, 64, False): steps
    }
    assert counted(found, "top_k_top_p_sampling", "rows", "cols", "dtype") == {(4, 128256, "float32"): 1 + NEW_TOKENS}
    assert found.notes == ()


def test_one_of_several_devices_has_its_share_of_heads_and_widths(box: Catalog) -> None:
    found = derived(box, "llama-3.1-8b", devices=2)
    assert {(n, k) for _, n, k in counted(found, "linear", "m", "n", "k")} == {
        (3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168), (64128, 4096),
    }  # fmt: skip
    assert counted(found, "rotary_embedding", "tokens", "heads", "kv_heads") == {
        (2048, 16, 4): 32,
        (4, 16, 4): 32 * NEW_TOKENS,
    }
    # 8 heads of keys on 16 devices: two of them have each
    sixteen = derived(box, "llama-3.1-8b", devices=16)
    assert {heads for (heads,) in counted(sixteen, "attention", "kv_heads")} == {1}
    with pytest.raises(InvalidArgumentError, match=r"num_attention_heads is 32, which 3 devices do not divide"):
        described("llama-3.1-8b", 3)


def test_quantised_layers_call_the_ops_of_their_weights_and_the_head_does_not(box: Catalog) -> None:
    int4 = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize="int4", group_size=64))
    assert counted(int4, "linear", "m", "n") == {(1, 128256): 1 + NEW_TOKENS}
    assert {group for (group,) in counted(int4, "gemm_int4", "group_size")} == {64}
    assert len(int4.shapes.problems["gemm_int4"]) == 8
    fp8 = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize="fp8"))
    assert counted(fp8, "quantize_per_token", "m", "k")[1, 4096] == 3 * 32 * NEW_TOKENS
    assert counted(fp8, "scaled_mm", "m", "n", "dtype")[1, 28672, "float8_e4m3fn"] == 32 * NEW_TOKENS
    w8a8 = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize="w8a8"))
    assert counted(w8a8, "scaled_mm", "m", "n", "dtype")[1, 28672, "int8"] == 32 * NEW_TOKENS
    w4a8 = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize="w4a8", group_size=64))
    assert counted(w4a8, "quantize_per_token", "m", "k", "out_dtype")[1, 4096, "int8"] == 3 * 32 * NEW_TOKENS
    assert counted(w4a8, "gemm_w4a8", "m", "n", "group_size", "activation")[1, 28672, 64, "int8"] == 32 * NEW_TOKENS
    int8 = derived(box, "phi-4", Workload((1,), (64,), quantize="int8"))
    assert len(int8.shapes.problems["gemm_int8"]) == 8
    experts = derived(box, "mixtral-8x7b-v0.1", Workload((1,), (64,), quantize="int4"))
    assert counted(experts, "grouped_gemm_int4", "m", "n", "k")[2, 28672, 4096] == 32 * NEW_TOKENS
    assert counted(experts, "silu_and_mul", "rows", "cols")[2, 14336] == 32 * NEW_TOKENS
    rounded = derived(box, "mixtral-8x7b-v0.1", Workload((1,), (64,), quantize="w4a8"))
    assert "fused_moe" not in rounded.shapes.problems
    assert counted(rounded, "grouped_gemm_int4", "m", "n", "k") == counted(experts, "grouped_gemm_int4", "m", "n", "k")
    by_rows = derived(box, "mixtral-8x7b-v0.1", Workload((4,), (64,), quantize="fp8"))
    assert "fused_moe" not in by_rows.shapes.problems
    names = ("m", "n", "k", "experts", "out_dtype", "dtype")
    gate_up, down = (28672, 4096, 8), (4096, 14336, 8)
    for sizes in (gate_up, down):
        found = counted(by_rows, "grouped_scaled_mm", *names)
        assert found[8, *sizes, "bfloat16", "float8_e4m3fn"] == 32 * NEW_TOKENS
    # a token is rounded once in front of its experts, their products each
    assert counted(by_rows, "quantize_per_token", "m", "k")[8, 14336] == 32 * NEW_TOKENS
    assert counted(by_rows, "quantize_per_token", "m", "k")[4, 4096] == 3 * 32 * NEW_TOKENS
    # the router stays as it is
    assert counted(experts, "linear", "m", "n")[1, 8] == 32 * NEW_TOKENS
    with pytest.raises(InvalidArgumentError, match="no gradient"):
        derived(box, "llama-3.1-8b", Workload(quantize="int4", training=True))


@pytest.mark.parametrize("kind", [one for one in get_args(Quantization) if one != "none"])
def test_a_head_is_quantised_as_the_layers_where_it_is_asked_for(box: Catalog, kind: Quantization) -> None:
    found = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize=kind, lm_head=True))
    assert "linear" not in found.shapes.problems
    op = {"fp8": "scaled_mm", "w8a8": "scaled_mm"}.get(kind, f"gemm_{kind}")
    products = counted(found, op, "m", "n", "k")
    assert products[1, 128256, 4096] == 1 + NEW_TOKENS
    assert products[1, 28672, 4096] == 32 * NEW_TOKENS


def test_symmetric_weights_have_no_zero_points(box: Catalog) -> None:
    for kind in ("int8", "int2", "int1", "nf4", "w4a8"):
        found = derived(box, "llama-3.1-8b", Workload((1,), (64,), quantize=kind, symmetric=True))
        assert {zeros for (zeros,) in counted(found, f"gemm_{kind}", "zeros")} == {"none"}
    int4 = derived(box, "mixtral-8x7b-v0.1", Workload((1,), (64,), quantize="int4", symmetric=True))
    assert {symmetric for (symmetric,) in counted(int4, "gemm_int4", "symmetric")} == {True}
    assert {zeros for (zeros,) in counted(int4, "grouped_gemm_int4", "zeros")} == {"none"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group_size", [16, 128, 256])
@pytest.mark.parametrize("kind", ["int8", "int4", "int2", "int1", "nf4"])
def test_packed_layers_call_what_a_packed_linear_calls(
    box: Catalog, kind: Quantization, group_size: int, symmetric: bool, dtype: str
) -> None:
    found = derived(box, "llama-3.1-8b", Workload((4,), (64,), dtype, kind, group_size, symmetric))
    bits, codebook = (4, "nf4") if kind == "nf4" else (int(kind[3:]), None)
    weight = quantize(torch.randn(8, 4096, dtype=getattr(torch, dtype)), bits, group_size, symmetric, codebook)
    op = box.ops()[product_op(weight)]
    called = op.pose(op.arguments(op.bind((torch.zeros(4, 4096, dtype=weight.dtype), weight), {})))
    problem = next(one for one in found.shapes.problems[op.name] if (one.m, one.k) == (4, 4096))
    assert {**problem.dims, "n": 8} == dict(called.dims)


def test_experts_are_one_op_in_inference_and_grouped_products_in_training(box: Catalog) -> None:
    found = derived(box, "mixtral-8x7b-v0.1", ONE, devices=2)
    names = ("tokens", "hidden", "intermediate", "experts", "top_k", "activation", "routing")
    assert counted(found, "fused_moe", *names) == {
        (2048, 4096, 7168, 8, 2, "silu", "uniform"): 32, (4, 4096, 7168, 8, 2, "silu", "uniform"): 32 * NEW_TOKENS,
    }  # fmt: skip
    assert not found.shapes.problems.keys() & {"grouped_gemm", "silu_and_mul"}
    trained = derived(box, "mixtral-8x7b-v0.1", Workload((4,), (512,), training=True), devices=2)
    products = {(4096, 14336, 4096): 32, (4096, 4096, 7168): 32}
    assert counted(trained, "grouped_gemm", "m", "n", "k") == products
    assert counted(trained, "grouped_gemm_backward", "m", "n", "k") == products
    assert "fused_moe" not in trained.shapes.problems


def test_layers_that_stay_apart_are_those_of_the_model(box: Catalog) -> None:
    apart = derived(box, "llama-3.1-8b", Workload((1,), (64,), separate=True, quantize="int4"))
    steps = 32 * NEW_TOKENS
    assert {key: count for key, count in counted(apart, "gemm_int4", "m", "n", "k").items() if key[0] == 1} == {
        (1, 4096, 4096): 2 * steps, (1, 1024, 4096): 2 * steps, (1, 14336, 4096): 2 * steps, (1, 4096, 14336): steps,
    }  # fmt: skip
    # Phi-3 and GPT-2 have them fused themselves
    for name in ("phi-4", "gpt2"):
        assert derived(box, name, Workload(separate=True)).shapes == derived(box, name, Workload()).shapes


def test_a_note_tells_which_layers_transformers_computes_itself(box: Catalog) -> None:
    (note,) = (note for note in derived(box, "gpt2").notes if "Conv1D" in note)
    assert "unless they are packed" in note
    for name, workload in (("gpt2", Workload(quantize="int4")), ("llama-3.1-8b", ONE)):
        assert not [note for note in derived(box, name, workload).notes if "Conv1D" in note]


def test_windows_hold_where_the_layers_have_them(box: Catalog) -> None:
    found = derived(box, "gemma-3-4b", Workload((1,), (4096,)))
    assert counted(found, "attention", "span") == {(1024,): 29, (False,): 5}
    # a cache in rows keeps a window's keys; one in pages is shared by all layers
    assert counted(found, "attention_decode", "kv_len", "span") == {
        (1024, 1024): 29 * NEW_TOKENS,
        (4096, False): 5 * NEW_TOKENS,
    }
    paged = derived(box, "gemma-3-4b", Workload((1,), (4090,), page=16))
    assert set(counted(paged, "attention_decode", "kv_len", "page", "span")) == {(4096, 16, 1024), (4096, 16, False)}
    assert counted(paged, "kv_cache_append", "tokens", "block_size") == {(4090, 16): 34, (1, 16): 34 * NEW_TOKENS}
    assert "rotary_kv_append" not in paged.shapes.problems
    gemma2 = derived(box, "gemma-2-9b")
    # of the layers that keep all keys
    assert counted(gemma2, "rotary_kv_append", "q_len", "kv_len") == {(1, 64): 21 * NEW_TOKENS}
    assert counted(gemma2, "attention", "span", "softcap") == {(4096, True): 21, (False, True): 21}
    assert set(counted(derived(box, "mistral-7b-v0.1"), "attention", "span")) == {(4096,)}
    assert set(counted(derived(box, "mistral-7b-v0.3"), "attention", "span")) == {(False,)}


def test_what_no_op_computes_is_told(box: Catalog) -> None:
    found = derived(box, "deepseek-v3")
    assert "attention" not in found.shapes.problems
    assert "topk_softmax" not in found.shapes.problems
    assert len(found.notes) == 2
    assert counted(found, "mla_decode", "batch", "heads", "kv_len", "kv_lora_rank", "rope_dim", "page") == {
        (4, 128, 512, 512, 64, False): 61 * NEW_TOKENS
    }
    shared = derived(box, "deepseek-v3", Workload((2,), (1000,), page=64), devices=8)
    assert set(counted(shared, "mla_decode", "heads", "kv_len", "page")) == {(16, 1024, 64)}
    assert "mla_decode" not in derived(box, "deepseek-v3", Workload((1,), (128,), training=True)).shapes.problems
    assert counted(found, "fused_moe", "tokens", "experts", "top_k") == {
        (2048, 256, 8): 58, (4, 256, 8): 58 * NEW_TOKENS,
    }  # fmt: skip
    config = {**config_of("llama-3.1-8b"), "model_type": "novel", "hidden_act": "xielu"}
    told = derive(decoder_of(config, "novel"), ONE, box)
    assert "silu_and_mul" not in told.shapes.problems
    assert any("'novel' is not known" in note for note in told.notes)
    assert any("'xielu'" in note for note in told.notes)


def test_a_quantised_checkpoint_is_told(box: Catalog) -> None:
    form = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    decoder = decoder_of({**config_of("llama-3.1-8b"), **form}, "packed")
    (note,) = derive(decoder, ONE, box).notes
    assert "quantised (gptq, bits 4, group size 128)" in note
    assert derive(decoder, Workload(quantize="int4"), box).notes == ()


def test_names_of_the_hub_are_names_of_the_box(tmp_path: Path) -> None:
    config = config_of("llama-3.1-8b")
    assert config_of("meta-llama/Llama-3.1-8B-Instruct") is not None
    assert config_of("meta-llama/Meta-Llama-3.1-8B") == config
    for name in names():
        assert config_of(str(config_of(name)["_name_or_path"])) == config_of(name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert config_of(str(tmp_path)) == config_of(str(tmp_path / "config.json")) == config


def test_the_config_of_a_model_of_several_modalities_holds_its_decoder(box: Catalog) -> None:
    inner = dict(config_of("gemma-3-4b"))
    nested = decoder_of({"model_type": "gemma3", "vision_config": {"hidden_size": 7}, "text_config": inner}, "nested")
    assert nested == decoder_of(inner, "plain")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "model_type 'llama' has no hidden_size"),
        ({"vocab_size": None}, "has no vocab_size"),
        ({"intermediate_size": None}, "has no intermediate_size"),
        ({"hidden_act": None}, "has no hidden_act"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": -1}, "num_attention_heads is -1"),
        ({"num_attention_heads": 33}, "has no head_dim"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5"),
        ({"partial_rotary_factor": 3.0}, "partial_rotary_factor is 3"),
        ({"layer_types": "all", "sliding_window": 8}, "expected a list"),
        ({"hidden_act": 3}, "expected text"),
    ],
)
def test_a_key_that_is_missing_or_has_no_meaning_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgumentError) as fault:
        decoder_of({**config_of("llama-3.1-8b"), **change}, "some/config.json")
    assert told in str(fault.value)
    assert str(fault.value).startswith("some/config.json: ")


@pytest.mark.parametrize(
    ("text", "told"), [("{", "is no config.json"), ("[" * 100_000, "is no config.json"), ("[]", "holds a list")]
)
def test_a_file_that_is_no_config_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=told):
        config_of(str(path))


def test_an_unknown_name_is_told_what_is_near(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"(?s)neither.*llama-3\.1-8b"):
        config_of("meta-llama/Llama-3-8B")
    with pytest.raises(InvalidArgumentError, match="No such file"):
        config_of(str(tmp_path / "config.json"))


def test_derived_problems_are_written_as_a_shapes_file_that_holds_them(box: Catalog, tmp_path: Path) -> None:
    found, path = derived(box, "gemma-2-9b").shapes, tmp_path / "gemma.yaml"
    write_shapes(path, found, ["what it is"])
    assert read_shapes(path, box) == found
    with pytest.raises(InvalidArgumentError, match="is there already"):
        write_shapes(path, found, [])


# --- what transformers builds

_SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 128}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}
_BUILT: dict[str, dict[str, Any]] = {
    "llama": {**_SMALL, **_HEADS, "attention_bias": True, "mlp_bias": True},
    "qwen2": {**_SMALL, "num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen3": {**_SMALL, **_HEADS},
    "gemma": {**_SMALL, **_HEADS},
    "gemma2": {**_SMALL, **_HEADS},
    "gemma3_text": {**_SMALL, **_HEADS},
    "mistral": {**_SMALL, **_HEADS},
    "mixtral": {**_SMALL, **_HEADS, "num_local_experts": 4},
    "qwen3_moe": {**_SMALL, **_HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "phi": {**_SMALL, "num_attention_heads": 4},
    "phi3": {**_SMALL, "num_attention_heads": 8, "num_key_value_heads": 2, "pad_token_id": 0},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 128, "n_positions": 32},
    "deepseek_v3": {
        **_SMALL, "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 32,
        "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    },
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", list(_BUILT))
def test_products_and_norms_are_those_of_the_modules_that_transformers_builds(
    box: Catalog, kind: str, tmp_path: Path
) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **_BUILT[kind])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    # through the file that save_pretrained writes
    config.save_pretrained(tmp_path)
    found = derived(box, str(tmp_path), Workload((1,), (1,), training=True))
    products = Counter(
        {(n, k, bias): count for (n, k, bias), count in counted(found, "linear", "n", "k", "bias").items()}
    )
    # the head's product is a part of the loss
    products.update(counted(found, "fused_linear_cross_entropy_gradients", "cols", "k", "bias"))
    assert products == _products(model)
    assert _norms_of(found.shapes.counts) == _norms(model)
    grouped = counted(found, "grouped_gemm", "experts", "n", "k")
    assert grouped == _experts(model)


def _products(model: Any) -> dict[tuple[int, int, bool], int]:
    """Outputs, inputs and bias of a model's linear layers; those of one input that are fused count as one."""
    import torch

    found: Counter[tuple[int, int, bool]] = Counter()
    for module in model.modules():
        children = dict(module.named_children())
        for fused in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            if set(fused) <= children.keys():
                parts = [children.pop(name) for name in fused]
                outputs = sum(part.out_features for part in parts)
                found[outputs, parts[0].in_features, parts[0].bias is not None] += 1
        for child in children.values():
            if isinstance(child, torch.nn.Linear):
                found[child.out_features, child.in_features, child.bias is not None] += 1
            elif type(child).__name__ == "Conv1D":
                found[child.weight.shape[1], child.weight.shape[0], True] += 1
            elif type(child).__name__.endswith(("Router", "TopkRouter")):
                found[*child.weight.shape, False] += 1
    return dict(found)


def _norms(model: Any) -> dict[int, int]:
    found: Counter[int] = Counter()
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "LayerNorm")):
            found[module.weight.numel()] += 1
    return dict(found)


def _norms_of(counts: Any) -> dict[int, int]:
    found: Counter[int] = Counter()
    problem: Problem
    for problem, count in counts.items():
        if problem.op in {"rms_norm", "layer_norm"}:
            found[problem.cols] += count
    return dict(found)


def _experts(model: Any) -> dict[tuple[int, int, int], int]:
    found: Counter[tuple[int, int, int]] = Counter()
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            for name in ("gate_up_proj", "down_proj"):
                found[tuple(getattr(module, name).shape)] += 1
    return dict(found)
