"""Sums into the residual stream of a decoder together with the norms of these sums, by fused_add_rms_norm.

A sum and its norm are computed at the sum. The norm's module, which the model's own code then calls, returns what it
has been handed, so that hooks see both as before. Only programs of torch.compile do so, without gradients: the op
writes in place, and torch.compile copies what somebody else still needs. In eager code two copies would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....tracing import constants_of
from ..layer_proofs import ResidualForm, hands_on, residual_form
from ..report import ApplyReport
from ..swapping import Swapped, swap
from .layer_stacks import LayerStack, replace_stack
from .linears import is_bare
from .norms import RmsNormForward
from .norms_ahead import AHEAD

PART = "residual sum with the norm that follows"


class ResidualLayer(Swapped):
    """A decoder layer of a known form, whose sums are computed with the norms that follow them.

    Its constants are those of the form.
    """

    registry_next: torch.nn.Module | None
    """The norm of the layer's output: the next layer's, or the last one of the model."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        form = _known_form(self) if is_dynamo_compiling() else None
        if form is None or args or self.training or _drops(self, form):
            plain: torch.Tensor = super().forward(hidden_states, *args, **kwargs)
            return plain
        given = {**dict(form.defaults), **kwargs}
        x = _through(self, form.before, hidden_states)
        attention = getattr(self, form.attention)
        attended = attention(**{form.keyword: x}, **given) if form.keyword else attention(x, **given)
        out = _through(self, form.after, attended[0] if form.tuples else attended)
        h = _added(out, hidden_states, getattr(self, form.then[0]))
        return _added(_through(self, form.then, h), h, self.registry_next if AHEAD.whole else None)


def replace_residual_sums(model: torch.nn.Module, report: ApplyReport) -> None:
    """Replace the decoder layers of a model whose norms are replaced, where they have a known form."""
    for name, parent in list(model.named_modules()):
        for child, layers in parent.named_children():
            if isinstance(layers, torch.nn.ModuleList) and _normalises(layers):
                _replace_layers(parent, child, f"{name}." if name else "", report)


def _normalises(layers: torch.nn.ModuleList) -> bool:
    """Whether modules have RMS norms of their own that are replaced, and are replaced themselves only by this."""
    return len(layers) > 0 and all(
        (isinstance(layer, ResidualLayer) or not isinstance(layer, Swapped))
        and any(isinstance(one, RmsNormForward) for one in layer.children())
        for layer in layers
    )


def _replace_layers(parent: torch.nn.Module, child: str, prefix: str, report: ApplyReport) -> None:
    """Replace the layers ``child`` of a model, and the model itself if it hands on what its layers return.

    Of layers that were replaced before, the norm that follows is found again.
    """
    layers: Any = parent._modules[child]
    forms = [_known_form(layer) if isinstance(layer, ResidualLayer) else residual_form(layer) for layer in layers]
    known = [form for form in forms if not isinstance(form, str)]
    last = [name for name, one in parent.named_children() if isinstance(one, RmsNormForward)]
    free = not isinstance(parent, Swapped) or isinstance(parent, LayerStack)
    whole = bool(known) and len(last) == 1 and free and hands_on(parent, child, last[0])
    # the module that is called with what each layer returns, by its name in the model
    following = [_first(f"{child}.{at}", form) for at, form in enumerate(forms) if at] + last[:1]
    for at, (layer, form) in enumerate(zip(layers, forms, strict=True)):
        place = f"{child}.{at}"
        if isinstance(form, str):
            report.leave(form, f"{prefix}{place}")
            continue
        # a layer that stands in several places has no one norm that follows it
        alone = whole and sum(one is layer for one in layers) == 1
        norms = [_norm_of(parent, name) for name in (f"{place}.{form.then[0]}", following[at] if alone else "")]
        if any(norms) or isinstance(layer, ResidualLayer):
            _replace_layer(parent, layer, form, norms, prefix, report)
        if not any(norms):
            report.leave("residual sums: no norm follows them", f"{prefix}{place}")
    if known and whole:
        replace_stack(parent, child)
    elif known:
        report.leave(f"{PART} in the next layer: the model changes what its layers return", prefix.rstrip("."))


def _replace_layer(
    model: torch.nn.Module, layer: Any, form: ResidualForm, norms: Sequence[str], prefix: str, report: ApplyReport
) -> None:
    """Replace a layer, if it is not, for the ``norms`` of its sums: the one within it, and the one that follows it.

    These are names in ``model``, and "" where there is none.
    """
    within, after = norms
    new = not isinstance(layer, ResidualLayer)
    if new:
        swap(layer, ResidualLayer, tuple(form), next=None)
    norm = model.get_submodule(after) if after else None
    for name, found in ((within, new), (after, layer.registry_next is not norm)):
        if name and found:
            report.add(PART, f"{prefix}{name}")
    # past torch's own, which would register a module
    layer.__dict__["registry_next"] = norm


def _first(layer: str, form: ResidualForm | str) -> str:
    """The name of the first module ahead of the attention of ``layer``, which gets its input; "" if there is none."""
    return "" if isinstance(form, str) or not form.before else f"{layer}.{form.before[0]}"


def _norm_of(model: torch.nn.Module, name: str) -> str:
    """``name`` if a module of a model has this name, and is a norm that is replaced; otherwise ""."""
    return name if name and isinstance(model.get_submodule(name), RmsNormForward) else ""


def _known_form(layer: ResidualLayer) -> ResidualForm:
    return ResidualForm(*constants_of(layer.registry_constants))


def _drops(layer: torch.nn.Module, form: ResidualForm) -> bool:
    """Whether a part of what is added is dropped, as in training."""
    return any(getattr(layer, name).training for name in form.dropouts)


def _through(layer: torch.nn.Module, names: tuple[str, ...], x: torch.Tensor) -> torch.Tensor:
    """The result of a layer's modules of these names, called one after another, each on the result before."""
    for name in names:
        x = getattr(layer, name)(x)
    return x


def _added(out: torch.Tensor, residual: torch.Tensor, norm: Any) -> torch.Tensor:
    """``residual + out``; if it can be, with its norm, which is kept for ``norm``."""
    if norm is None or not _fused(out, residual, norm):
        return residual + out
    normed, total = out.clone(), residual.clone()
    eps, offset = constants_of(norm.registry_constants)
    call("fused_add_rms_norm", normed, total, norm.weight, eps, offset)
    AHEAD.keep(norm, total, normed)
    return total


def _fused(out: torch.Tensor, residual: torch.Tensor, norm: Any) -> bool:
    if not isinstance(norm, RmsNormForward) or not is_bare(norm) or out.shape != residual.shape:
        return False
    weight: torch.Tensor = norm.weight
    if torch.is_grad_enabled() and (out.requires_grad or residual.requires_grad or weight.requires_grad):
        return False
    alike = out.dtype is residual.dtype is weight.dtype and out.device == residual.device == weight.device
    return alike and weight.shape == out.shape[-1:]
