"""``apply``: a transformers model whose parts run by the registry; ``restore``: as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from transformers.pytorch_utils import Conv1D

from ...api import unrecorded
from ...errors import InvalidArgumentError
from ...nn import PackedLinear
from .attention import NAME
from .forwards.appending import replace_appends
from .forwards.experts import replace_experts
from .forwards.fused_losses import fuse_loss
from .forwards.gated_mlps import gate_and_up, replace_gated
from .forwards.gelus import replace_gelu
from .forwards.latents.latent_attention import needing_masks, replace_latents
from .forwards.linears import AnyLinear, DenseMember, LinearForward, LinearGroup, PackedMember, is_joinable
from .forwards.norms import LayerNormForward, replace_norm
from .forwards.residual_sums import replace_residual_sums
from .forwards.rotary import replace_rotary, restore_rotary
from .inner_models import pretrained
from .loss_proofs import between_output_and_loss, output_layer
from .losses import causal_lm_loss
from .proofs import SPREAD, is_spread
from .quantization.experts import expert_modules, other_experts, packed_experts
from .quantizing import GROUP_SIZE, format_of, lost_weights, packing_of, put, refuse_without_format
from .report import ApplyReport
from .swapping import Swapped, other_forward, swap, swapped, unswap

WeightFormat = Literal["int8", "int4", "int2", "int1", "nf4", "fp8", "w8a8", "w4a8"]

_ATTENTION = "_registry_attention"
_LOSS = "_registry_loss"
_FLATTENS = "FullyShardedDataParallel"
_TOGETHER = (("q_proj", "k_proj", "v_proj"),)
"""Linear layers of one input in attention modules."""


def apply(
    model: torch.nn.Module,
    *,
    quantize: WeightFormat | None = None,
    group_size: int = GROUP_SIZE,
    symmetric: bool = False,
    lm_head: bool = False,
    fused_loss: bool = True,
) -> ApplyReport:
    """Let a transformers model's norms, linear layers, MLPs, rotary positions, attention and loss run by ops, in place.

    quantize     pack the weights of its linear layers: "int4" for 4 bits, with one scale for ``group_size`` of a row;
                 "fp8" for float8 weights and activations, with a scale for each row of both, "w8a8" so in int8; "w4a8"
                 for 4 bits beside activations in int8 with a scale for each token. The weights in full precision are
                 dropped. ``save_pretrained`` then writes packed ones, which ``from_pretrained`` loads
    symmetric    packed weights without zero points
    lm_head      pack the output layer, too
    fused_loss   in training with labels, compute the loss from the output layer's input, a part of the vocabulary at a
                 time, so that the outputs' ``logits`` are None. False keeps them, for what reads them in training

    Parts are found by their structure and, but for linear layers and attention, by what they compute: a part that
    computes something else stays. The report tells which were replaced, and which left, and why. Names, parameters and
    ``state_dict`` stay those of the model, unless it is quantised; ``restore`` undoes it. A model that was applied
    before may be quantised later, but not in two formats.

    Raises InvalidArgumentError, before anything is replaced, for what is no module, an unknown ``quantize``, settings
    that it has no use for, and weights that are not loaded or that FullyShardedDataParallel has taken; and for a model
    to quantise without layers that can be packed, or with weights that are packed otherwise already, spread over
    devices by no tensor-parallel plan, or not finite. All ranks of such a plan call this, and a fault of one is told in
    all.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"apply: got a {type(model).__name__}, expected a model (torch.nn.Module)")
    _check_flags(symmetric=symmetric, lm_head=lm_head, fused_loss=fused_loss)
    config = None if quantize is None else format_of(quantize, group_size, symmetric)
    if config is None:
        refuse_without_format(group_size, symmetric, lm_head)
    _check_loaded(model)
    _check_unflattened(model)
    report = ApplyReport()
    if config is not None and (packing := packing_of(model, config, lm_head=lm_head, report=report)):
        # parts that were replaced before hold on to the dense layers
        _restore_modules(model)
        put(model, packing, report)
    # proofs call ops, at sizes that the model does not have
    with unrecorded():
        _replace_parts(model, report, fused_loss=fused_loss)
    return report


def _replace_parts(model: torch.nn.Module, report: ApplyReport, *, fused_loss: bool) -> None:
    for name, module in list(model.named_modules()):
        if not isinstance(module, Swapped):
            _replace(module, name, report)
    experts = dict([*expert_modules(model), *packed_experts(model)])
    for name, module in experts.items():
        if not isinstance(module, Swapped):
            told = replace_experts(module)
            report.leave(f"experts: {told}", name) if told else report.add("experts", name)
    for name in other_experts(model, experts):
        report.leave("experts: they compute something else than sums of down(act(gate(x)) * up(x))", name)
    _replace_rotary(model, report)
    models = pretrained(model)
    if not models:
        report.leave("attention: no transformers model with attention", "")
    for name, each in models.items():
        _replace_attention(each, name, report)
    replace_residual_sums(model, report)
    _leave_layer_norms(model, report)
    for name, each in models.items():
        part = ApplyReport()
        # by apply or, when the model was loaded, by its user
        if getattr(each.config, "_attn_implementation", None) == NAME:
            replace_latents(each, NAME, part)
            replace_appends(each, NAME, part)
        report.include(part, name)
        _replace_loss(each, name, report, fused=fused_loss)


def restore(model: torch.nn.Module) -> None:
    """Undo ``apply``: every module has its own forward again, with its own parameters.

    Raises InvalidArgumentError if ``apply`` has packed weights: those in full precision are gone.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"restore: got a {type(model).__name__}, expected a model (torch.nn.Module)")
    if lost_weights(model):
        raise InvalidArgumentError(
            "restore: the model was quantised, and its weights in full precision are gone", hint="load it again"
        )
    _restore_modules(model)
    # a model of PEFT may stand around the one that apply was called with
    for holder in model.modules():
        if _ATTENTION in vars(holder):
            holder.set_attn_implementation(getattr(holder, _ATTENTION))  # type: ignore[operator]
            delattr(holder, _ATTENTION)


def _restore_modules(model: torch.nn.Module) -> None:
    """Undo ``apply`` but for the model's choice of attention."""
    for _, module in list(swapped(model)):
        if hasattr(module, "registry_group") or hasattr(module, "registry_gate_up"):
            for layer in (module, *module.children()):
                _separate(layer)
        restore_rotary(module)
        unswap(module)
    for holder in model.modules():
        if _LOSS in vars(holder):
            delattr(holder, "_loss_function")
            delattr(holder, _LOSS)


def _check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"apply: {name}={value!r}, expected True or False")


def _check_loaded(model: torch.nn.Module) -> None:
    """Raise InvalidArgumentError for weights on meta, unless accelerate holds them elsewhere until they are needed."""
    for name, module in model.named_modules():
        empty = [part for part, weight in module.named_parameters(recurse=False) if weight.is_meta]
        if empty and not hasattr(module, "_hf_hook"):
            raise InvalidArgumentError(
                f"apply: {f'{name}.{empty[0]}'.lstrip('.')} is not loaded", hint="load the model's weights first"
            )


def _check_unflattened(model: torch.nn.Module) -> None:
    """Raise InvalidArgumentError for a model in FSDP's first version, whose layers' weights are parts of flat ones."""
    if any(type(one).__name__ == _FLATTENS for one in model.modules()):
        raise InvalidArgumentError(
            f"apply: the model is in a {_FLATTENS}, which has taken its layers' weights",
            hint=f"apply first: apply(model), then {_FLATTENS}(model)",
        )


def _separate(module: torch.nn.Module) -> None:
    """Give tensors that are parts of a group's memory of their own."""
    for parameter in module.parameters(recurse=False):
        if parameter.data.untyped_storage().nbytes() > parameter.data.nbytes:
            parameter.data = parameter.data.clone()
    for name, buffer in module.named_buffers(recurse=False):
        if not buffer.is_contiguous():
            setattr(module, name, buffer.contiguous())


def _replace(module: torch.nn.Module, name: str, report: ApplyReport) -> None:
    """Replace one module's forward, and those of its linear layers of one input."""
    for layers, names in _groups(module):
        _join(layers, [f"{name}.{one}" for one in names], report)
    pair = gate_and_up(module)
    group = None if pair is None else LinearGroup(pair)
    for part, told in (
        ("norm", replace_norm(module)),
        ("gated MLP", replace_gated(module, group)),
        ("gelu", replace_gelu(module)),
    ):
        if told is not None:
            report.leave(f"{part}: {told}", name) if told else report.add(part, name)
            return
    if isinstance(module, Conv1D):
        report.leave("linear: Conv1D, whose weight is transposed, stays transformers' own unless it is packed", name)
    if type(module) is torch.nn.Linear:
        told = other_forward(module) or _unlike_tensor(module.weight)
        if not told:
            swap(module, LinearForward)
        report.leave(f"linear: {told}", name) if told else report.add("linear", name)


def _unlike_tensor(weight: torch.Tensor) -> str:
    kind = type(weight.data)
    return "" if kind is torch.Tensor else SPREAD if is_spread(weight) else f"its weight is a {kind.__name__}"


def _replace_rotary(model: torch.nn.Module, report: ApplyReport) -> None:
    first = next((one for one in model.parameters() if one.dtype.is_floating_point), None)
    # a plain tensor, also where the parameters are spread over devices
    like = None if first is None else torch.empty(0, dtype=first.dtype, device=first.device)
    for name, module in list(model.named_modules()):
        told = None if like is None or isinstance(module, Swapped) else replace_rotary(module, like)
        if told is not None:
            report.leave(f"rotary positions: {told}", name) if told else report.add("rotary positions", name)


def _leave_layer_norms(model: torch.nn.Module, report: ApplyReport) -> None:
    """Note decoder layers whose sums no op takes together with their norms, GPT-2's and Phi's."""
    for name, layers in model.named_modules():
        if isinstance(layers, torch.nn.ModuleList):
            for at, layer in enumerate(layers):
                if any(isinstance(one, LayerNormForward) for one in layer.children()):
                    report.leave("residual sums: fused_add_rms_norm takes no layer norm", f"{name}.{at}")


def _groups(module: torch.nn.Module) -> Iterator[tuple[list[AnyLinear], tuple[str, ...]]]:
    for names in _TOGETHER:
        layers = [getattr(module, name, None) for name in names]
        found = [layer for layer in layers if is_joinable(layer)]
        if len(found) == len(names) and len({layer.in_features for layer in found}) == 1:  # type: ignore[union-attr]
            yield found, names  # type: ignore[misc]


def _join(layers: list[AnyLinear], names: list[str], report: ApplyReport) -> None:
    group = LinearGroup(layers)
    if not group.is_one:
        return
    for place, layer in enumerate(layers):
        member: Any = PackedMember if isinstance(layer, PackedLinear) else DenseMember
        swap(layer, member, group=group, place=place)
        report.add("linear layers of one input as one product", names[place])


def _replace_attention(model: Any, name: str, report: ApplyReport) -> None:
    """Replace the attention function of a model of transformers, which has this name in what ``apply`` was given."""
    now = getattr(model.config, "_attn_implementation", None)
    if now is None:
        report.leave("attention: no transformers model with attention", name)
        return
    if now == NAME:
        return
    if not getattr(model, "_supports_attention_backend", False):
        report.leave("attention: the model has no door for other attention functions", name)
        return
    try:
        model.set_attn_implementation(NAME)
    except Exception as fault:  # a model refuses in its own way
        report.leave(f"attention: {type(fault).__name__}: {fault}", name)
        return
    reader, why = needing_masks(model)
    if reader:
        model.set_attn_implementation(now)
        report.leave(f"attention: {why}", f"{name}.{reader}".lstrip("."))
        return
    setattr(model, _ATTENTION, now)
    report.add(f"attention ({now} before)", name or type(model).__name__)


def _replace_loss(model: Any, name: str, report: ApplyReport, *, fused: bool) -> None:
    """Replace the loss of a causal language model, by transformers' property for it; fuse it with the output layer."""
    if "_loss_function" in model.__dict__:
        return
    told = name or type(model).__name__
    own = model.loss_function
    if getattr(own, "__name__", "") != "ForCausalLMLoss":
        report.leave(f"loss: {getattr(own, '__name__', own)}", told)
        return
    if fused:
        _fuse_loss(model, name, report)
    model.loss_function = causal_lm_loss
    setattr(model, _LOSS, True)
    report.add("loss", told)


def _fuse_loss(model: Any, name: str, report: ApplyReport) -> None:
    output = output_layer(model)
    layer = getattr(model, output) if output else None
    path = f"{name}.{output}".strip(".")
    if type(layer) is torch.nn.Linear and is_spread(layer.weight):
        report.leave(f"loss without logits in training: {SPREAD}", path)
        return
    # between_output_and_loss tells of another program's forward
    if not isinstance(layer, LinearForward) and not (type(layer) is torch.nn.Linear and other_forward(layer)):
        report.leave("loss without logits in training: the model has no dense output layer of its own", path)
        return
    told = between_output_and_loss(model, output)
    if told:
        report.leave(f"loss without logits in training: {told}", path)
        return
    fuse_loss(model, output)
    report.add("loss without logits in training", path)
