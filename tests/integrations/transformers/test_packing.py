"""apply(quantize=...): which layers are packed, in which order of calls, and that a fault changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.utils.prune

from registry.errors import InvalidArgumentError
from registry.nn import PackedLinear, ScaledLinear

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers

    from registry.integrations.transformers import RegistryConfig, apply, restore
    from registry.integrations.transformers.swapping import swapped

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")
FORMATS = ("int4", "fp8", "w4a8")
OUTPUT = "not packed: the output layer (lm_head=True packs it)"


def llama(**changes: Any) -> Any:
    return tiny("llama", torch.bfloat16, **{"hidden_size": 128, "intermediate_size": 256, **changes})


def packed(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: one for name, one in model.named_modules() if isinstance(one, PackedLinear | ScaledLinear)}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt()).logits
    return found


def test_hooks_of_a_packed_layer_go_on_and_are_removed() -> None:
    model, seen = llama(num_hidden_layers=1), []
    layer = model.model.layers[0].mlp.down_proj
    handles = [
        layer.register_forward_hook(lambda _, args, kwargs, y: seen.append(y.shape), with_kwargs=True),
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape)),
    ]
    apply(model, quantize="int4")
    seen.clear()  # of the proofs that apply makes
    logits(model)
    assert seen == [(2, 11, 256), (2, 11, 128)]
    for handle in handles:
        handle.remove()
    logits(model)
    assert len(seen) == 2


def test_hooks_of_a_packed_layer_go_on_where_it_is_dequantised() -> None:
    model, seen = llama(num_hidden_layers=1), []
    apply(model, quantize="int4")
    handle = model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: seen.append("down"))
    model.dequantize()
    logits(model)
    assert seen == ["down"]
    handle.remove()
    logits(model)
    assert seen == ["down"]


# --- a second call


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.few(2)
def test_an_applied_model_is_packed_as_a_plain_one_is(quantize: Any) -> None:
    model, expected = llama(), llama()
    apply(model)
    model.set_attn_implementation("eager")
    told, plainly = apply(model, quantize=quantize).replaced, apply(expected, quantize=quantize).replaced
    assert told == plainly
    assert packed(model).keys() == packed(expected).keys()
    assert len(packed(model)) == 14
    expected.set_attn_implementation(model.config._attn_implementation)
    assert torch.equal(logits(model), logits(expected))
    model.train()(prompt(), labels=prompt()).loss.backward()
    assert model.lm_head.weight.grad is not None


@pytest.mark.few(6)
@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("loaded", [False, True], ids=["applied", "loaded"])
@pytest.mark.few(6)
def test_a_packed_model_is_not_packed_in_another_format(first: Any, second: Any, loaded: bool, tmp_path: Path) -> None:
    model = llama(num_hidden_layers=1)
    apply(model, quantize=first)
    if loaded:
        model.save_pretrained(tmp_path)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    before = {name: (type(one), one) for name, one in model.named_modules()}
    if first == second:
        assert apply(model, quantize=second).left == {OUTPUT: ["lm_head"]}
        return
    with pytest.raises(InvalidArgumentError, match=r"q_proj is packed already, .*; asked for is .*\n.*load the model"):
        apply(model, quantize=second)
    assert {name: (type(one), one) for name, one in model.named_modules()} == before


def test_another_group_size_and_zero_points_are_other_formats() -> None:
    model = llama(num_hidden_layers=1)
    apply(model, quantize="int4", group_size=64)
    given = "q_proj is packed already, 4 bits, with zero points in groups of 64"
    with pytest.raises(InvalidArgumentError, match=f"{given}; asked for is 4 bits, with zero points in groups of 32"):
        apply(model, quantize="int4", group_size=32)
    with pytest.raises(InvalidArgumentError, match=f"{given}; asked for is 4 bits, symmetric in groups of 64"):
        apply(model, quantize="int4", group_size=64, symmetric=True)


@pytest.mark.parametrize("loaded", [False, True], ids=["applied", "loaded"])
@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.few(3)
def test_the_output_layer_is_packed_later(quantize: Any, loaded: bool, tmp_path: Path) -> None:
    model, expected = llama(), llama()
    apply(model, quantize=quantize)
    if loaded:
        model.save_pretrained(tmp_path / "first")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "first", attn_implementation="eager")
    report = apply(model, quantize=quantize, lm_head=True)
    assert "lm_head" in [name for part, names in report.replaced.items() if "packed" in part for name in names]
    apply(expected, quantize=quantize, lm_head=True)
    assert packed(model).keys() == packed(expected).keys()
    assert torch.equal(logits(model), logits(expected))
    model.save_pretrained(tmp_path / "second")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert packed(again).keys() == packed(model).keys()


def test_a_dequantised_model_is_restored_and_packed_anew() -> None:
    model = llama()
    apply(model, quantize="int4")
    model.dequantize()
    restore(model)
    assert not list(swapped(model))
    assert not packed(model)
    apply(model, quantize="fp8")
    assert len(packed(model)) == 14
    with pytest.raises(InvalidArgumentError, match="weights in full precision are gone"):
        restore(model)


def test_a_part_and_a_copy_of_a_packed_model_are_not_restored_either() -> None:
    model = torch.nn.Sequential(llama(num_hidden_layers=1))
    apply(model, quantize="int4")
    for each in (model[0], copy.deepcopy(model)):
        with pytest.raises(InvalidArgumentError, match="weights in full precision are gone"):
            restore(each)


# --- faults


@pytest.mark.parametrize("applied", [False, True], ids=["plain", "applied"])
@pytest.mark.parametrize("quantize", ["int4", "fp8"])
@pytest.mark.few(2)
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_packed(quantize: Any, applied: bool) -> None:
    model = llama()
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] = torch.nan
    if applied:
        apply(model)
    before = {name: (type(one), one) for name, one in model.named_modules()}
    with pytest.raises(InvalidArgumentError, match=r"apply: model\.layers\.1\.mlp\.down_proj: .*holds NaN or infinity"):
        apply(model, quantize=quantize)
    assert {name: (type(one), one) for name, one in model.named_modules()} == before
    assert not hasattr(model.config, "quantization_config")
    restore(model)
    assert not packed(model)
    assert not list(swapped(model))


def test_experts_that_are_not_finite_are_named_and_nothing_is_packed() -> None:
    model = tiny("mixtral", torch.bfloat16, hidden_size=128, intermediate_size=256)
    model.model.layers[1].mlp.experts.down_proj.data[0, 3, 5] = torch.inf
    with pytest.raises(InvalidArgumentError, match=r"apply: model\.layers\.1\.mlp\.experts: .*holds NaN or infinity"):
        apply(model, quantize="int4", group_size=32)
    assert not packed(model)
    assert not list(swapped(model))


# --- what is left


@pytest.mark.parametrize("quantize", ["int4", "fp8"])
def test_a_tied_output_layer_is_left_and_the_model_is_saved_and_loaded(quantize: Any, tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    report = apply(model, quantize=quantize, lm_head=True)
    assert report.left == {"not packed: its weight is tied to that of model.embed_tokens": ["lm_head"]}
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    apply(again)
    assert torch.equal(logits(again), logits(model))


def test_a_layer_in_two_places_and_subclasses_are_left() -> None:
    class Own(torch.nn.Linear):
        """A subclass."""

    layer = torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(layer, layer, Own(64, 64), torch.nn.Linear(64, 64))
    left = apply(model, quantize="int4").left
    assert left["not packed: its weight is tied to that of 1"] == ["0"]
    assert left["not packed: a Own, which may use its weight otherwise than nn.Linear"] == ["2"]
    assert list(packed(model)) == ["3"]


def mamba() -> Any:
    config = transformers.MambaConfig(
        vocab_size=64, hidden_size=64, state_size=8, num_hidden_layers=1, time_step_rank=16
    )
    torch.manual_seed(3)
    return transformers.MambaForCausalLM(config).eval()


def test_a_layer_whose_weight_the_code_around_it_reads_is_left(tmp_path: Path) -> None:
    model = mamba()
    report = apply(model, quantize="int4")
    left = report.left["not packed: MambaMixer's code reads its weight"]
    # dt_proj in its own forward, the others where a package of kernels is installed
    assert left == [f"backbone.layers.0.mixer.{name}" for name in ("x_proj", "dt_proj", "out_proj")]
    assert "backbone.layers.0.mixer.in_proj" in packed(model)
    found = model(torch.arange(5)[None], use_cache=False).logits
    assert found.isfinite().all()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(torch.arange(5)[None], use_cache=False).logits, found)


@pytest.mark.filterwarnings("ignore:RegistryConfig")
def test_a_layer_whose_weight_is_read_stays_dense_while_it_is_loaded(tmp_path: Path) -> None:
    mamba().save_pretrained(tmp_path)
    config = RegistryConfig(bits=4)
    with pytest.warns(UserWarning, match=r"x_proj and 2 others are not packed: the code around reads the weight"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
    assert isinstance(model.backbone.layers[0].mixer.dt_proj, torch.nn.Linear)
    assert model(torch.arange(5)[None], use_cache=False).logits.isfinite().all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1)), "Sequential has no layer to pack\n.*nn.Linear and Conv1D"),
        (torch.nn.Linear(64, 64), "the model is itself a Linear.*\n.*PackedLinear.from_linear"),
    ],
    ids=["convolution", "linear"],
)
def test_a_model_without_a_layer_to_pack_is_refused(model: torch.nn.Module, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        apply(model, quantize="int4")
    assert not list(swapped(model))


def test_a_model_of_an_output_layer_alone_is_refused_with_the_reason() -> None:
    model = llama(num_hidden_layers=0)
    with pytest.raises(InvalidArgumentError, match=r"no layer to pack\n.*lm_head is not packed: the output layer"):
        apply(model, quantize="int4")


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("how", ["prune", "weight_norm", "forward"])
def test_a_layer_whose_weight_or_forward_another_program_makes_is_left(how: str) -> None:
    model = llama()
    layer = model.model.layers[0].mlp.down_proj
    if how == "prune":
        torch.nn.utils.prune.l1_unstructured(layer, "weight", amount=0.25)  # type: ignore[no-untyped-call]
    elif how == "weight_norm":
        torch.nn.utils.weight_norm(layer)
    else:
        layer.forward = lambda x: torch.nn.Linear.forward(layer, x)
    expected = layer(torch.ones(1, 256, dtype=torch.bfloat16))
    report = apply(model, quantize="int4")
    left = [
        name
        for reason, names in report.left.items()
        if "made of other" in reason or "its forward" in reason
        for name in names
    ]
    assert left == ["model.layers.0.mlp.down_proj"]
    assert torch.equal(model.model.layers[0].mlp.down_proj(torch.ones(1, 256, dtype=torch.bfloat16)), expected)
    assert logits(model).isfinite().all()


def test_of_two_models_in_one_that_with_layers_is_packed() -> None:
    class Both(torch.nn.Module):
        """A language model beside one without linear layers."""

        def __init__(self) -> None:
            super().__init__()
            self.text = llama()
            self.image = transformers.ResNetModel(
                transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
            )

    both = Both()
    apply(both, quantize="int4")
    assert packed(both.text)
    assert both.text.config.quantization_config.bits == 4
    assert getattr(both.image, "hf_quantizer", None) is None


@pytest.mark.few(5)
@pytest.mark.parametrize("part", ["scales", "zeros", "qweight"])
@pytest.mark.parametrize("how", ["set", "load", "functional_call"])
@pytest.mark.parametrize("program", ["eager", "compiled"])
def test_any_other_tensor_of_a_joint_layer_is_multiplied_by(part: str, how: str, program: str) -> None:
    model = llama(num_hidden_layers=1)
    apply(model, quantize="int4")
    attention = model.model.layers[0].self_attn
    x = torch.randn(1, 3, 128, dtype=torch.bfloat16)

    def joint(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)

    run = torch.compile(joint, backend="eager", fullgraph=True) if program == "compiled" else joint
    with torch.no_grad():
        before = run(x)[1]
        old = getattr(attention.k_proj, part)
        other = old.roll(1, 0) + 1 if part == "zeros" else 2 * old if part == "scales" else old.roll(1, 1)
        if how == "functional_call":
            given = {f"k_proj.{part}": other}
            attention.forward = lambda: run(x)
            found = torch.func.functional_call(attention, given, ())[1]
            setattr(attention.k_proj, part, other)
        else:
            if how == "set":
                setattr(attention.k_proj, part, other)
            else:
                attention.k_proj.load_state_dict({part: other}, strict=False, assign=True)
            found = run(x)[1]
        expected = x.float() @ attention.k_proj.weight.dequantize().float().T
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    assert not torch.allclose(before.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_layer_of_a_group_that_is_compiled_alone_knows_what_was_written() -> None:
    model = llama(num_hidden_layers=1)
    apply(model, quantize="int4")
    attention = model.model.layers[0].self_attn
    x = torch.randn(1, 3, 128, dtype=torch.bfloat16)
    alone = {name: torch.compile(getattr(attention, name), backend="eager") for name in ("q_proj", "k_proj")}
    with torch.no_grad():
        for name in ("q_proj", "q_proj", "k_proj", "k_proj", "q_proj", "k_proj"):
            x.mul_(-2)
            expected = x.float() @ getattr(attention, name).weight.dequantize().float().T
            torch.testing.assert_close(
                alone[name](x).float(), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max())
            )


def test_a_packed_layer_of_a_file_without_its_form_is_compiled() -> None:
    layer = PackedLinear.from_linear(torch.nn.Linear(128, 64, bias=False).bfloat16())
    state = layer.__getstate__()
    del state["_form"]
    again = PackedLinear.__new__(PackedLinear)
    again.__setstate__(state)
    x = torch.randn(2, 128, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(torch.compile(again, backend="eager")(x), layer(x))


# --- GPT-2's Conv1D


@pytest.mark.parametrize("quantize", ["int4", "fp8", "w4a8"])
@pytest.mark.few(2)
def test_conv1d_is_packed_saved_loaded_and_comes_back(quantize: Any, tmp_path: Path) -> None:
    model = tiny("gpt2", torch.bfloat16)
    plain, expected = copy.deepcopy(model), logits(model)
    report = apply(model, quantize=quantize)
    assert len(packed(model)) == 8
    assert report.left["not packed: its weight is tied to that of transformer.wte"] == ["lm_head"]
    assert (logits(model) - expected).double().square().mean().sqrt() < 0.15 * expected.double().square().mean().sqrt()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    for each in (model, again):
        each.dequantize()
        assert {name: one.shape for name, one in each.state_dict().items()} == {
            name: one.shape for name, one in plain.state_dict().items()
        }
        assert type(each.transformer.h[0].mlp.c_fc) is type(plain.transformer.h[0].mlp.c_fc)
        weight, own = each.transformer.h[0].mlp.c_fc.weight, plain.transformer.h[0].mlp.c_fc.weight
        assert (weight - own).abs().max() < 0.15 * own.abs().max()


def test_conv1d_is_packed_alike_while_it_is_loaded(tmp_path: Path) -> None:
    model = tiny("gpt2", torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=RegistryConfig())
    apply(model, quantize="int4")
    assert packed(loaded).keys() == packed(model).keys()
    for name, layer in packed(model).items():
        other = packed(loaded)[name].state_dict()
        assert all(torch.equal(value, other[part]) for part, value in layer.state_dict().items())


@pytest.mark.parametrize("family", ["gpt2", "phi"])
def test_what_stays_of_models_with_layer_norms_is_told(family: str) -> None:
    left = apply(tiny(family)).left
    layers = ["transformer.h.0", "transformer.h.1"] if family == "gpt2" else ["model.layers.0", "model.layers.1"]
    assert left["residual sums: fused_add_rms_norm takes no layer norm"] == layers
    conv1d = [names for reason, names in left.items() if "Conv1D" in reason]
    assert [len(names) for names in conv1d] == ([8] if family == "gpt2" else [])


# --- a packed output layer


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_resizing_and_tying_a_packed_output_layer_are_told(quantize: Any) -> None:
    model = llama(num_hidden_layers=1)
    apply(model, quantize=quantize, lm_head=True)
    assert model.resize_token_embeddings() is model.model.embed_tokens  # nothing is resized
    model.tie_weights()  # the model ties none
    with pytest.raises(InvalidArgumentError, match="cannot be resized") as told:
        model.resize_token_embeddings(120)
    assert "load it in full precision, resize it, and quantise it then" in told.value.hint
    model.config.tie_word_embeddings = True
    with pytest.raises(InvalidArgumentError, match="cannot be tied") as told:
        model.tie_weights()
    assert "tie its weights, and quantise it then" in told.value.hint
    assert logits(model).shape == (2, 11, 96)


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_resized_beside_packed_layers(tied: bool) -> None:
    model = llama(num_hidden_layers=1, tie_word_embeddings=tied)
    apply(model, quantize="int8")
    model.resize_token_embeddings(120)
    assert logits(model).shape == (2, 11, 120)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
