"""Rotary positions of queries and keys by rotary_embedding.

Attention of transformers' models calls a function of their own file, ``apply_rotary_pos_emb``, with the cosines and
sines that a module of the model has computed once for all layers. That module is swapped: its cosines then carry the
op's table. The function is replaced in its file, for all models of that class, by one that runs the op where cosines
carry a table, and itself elsewhere.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....dispatch.torch_side.states import differentiating_otherwise
from ..proofs import disagreement
from ..swapping import Swapped, other_forward, swap, unswap
from .cache_appends import APPENDS, QkRotation

FUNCTION = "apply_rotary_pos_emb"
_USERS = "registry_rotaries"
_TABLE = "registry_table"


class RotaryTables(NamedTuple):
    """What cosines carry: positions [batch, seq], the op's table for them, the table of the gradient, and the sines.

    The gradient of a rotation is the rotation by the opposite angles; there is no table for it without gradients.
    """

    positions: torch.Tensor
    table: torch.Tensor
    back: torch.Tensor | None
    sin: torch.Tensor


class RotaryForward(Swapped):
    """The module's own cosines and sines; the cosines carry ``RotaryTables``.

    Under torch.compile they do not: Inductor fuses the rotation with what stands around it, unless one op also appends
    keys to a static cache.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = super().forward(x, *args, **kwargs)
        if not is_dynamo_compiling():
            setattr(cos, _TABLE, tables_of(cos, sin, x.shape[0]))
        if APPENDS.tables is not None and APPENDS.active:
            half = cos.shape[-1] // 2
            table = torch.cat((cos[..., :half], sin[..., :half]), -1)
            APPENDS.tables.append((cos, sin, table.expand(x.shape[0], -1, -1)))
        return cos, sin


def replace_rotary(module: torch.nn.Module, like: torch.Tensor) -> str | None:
    """Replace a rotary module's forward and the function of its file that rotates by it.

    ``like`` has the dtype and the device of the model's activations. Returns why not, "" if it is replaced, and None
    for another module.
    """
    frequencies = [buffer for name, buffer in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    file = sys.modules.get(type(module).__module__)
    own: QkRotation | None = getattr(file, FUNCTION, None)
    if not frequencies or own is None:
        return None
    others = sorted(name for name in vars(file) if name.startswith("apply_rotary_") and name != FUNCTION)
    if others:
        return f"its file has several rotations: {', '.join(others)}"
    rotation = own if hasattr(own, "registry_own") else _by_table(own)
    plain: QkRotation = getattr(own, "registry_own", own)
    if isinstance(plain, torch.nn.Module) and (told := other_forward(plain)):
        return told
    swap(module, RotaryForward)
    for layer_type in getattr(module, "layer_types", (None,)):
        given = {} if layer_type is None else {"layer_type": layer_type}
        cols = 6 * frequencies[0].numel()
        told = disagreement(_rotated(module, plain, given), _rotated(module, rotation, given), cols, like)
        if told:
            unswap(module)
            return told
    users = vars(file).setdefault(_USERS, weakref.WeakSet())
    users.add(module)
    setattr(file, FUNCTION, rotation)
    return ""


def restore_rotary(module: torch.nn.Module) -> None:
    """Put the function of a replaced module's file back, if no other module that was replaced rotates by it.

    Copies of replaced modules do not count: without the function they rotate by the model's own.
    """
    file = sys.modules.get(getattr(type(module), "registry_class", type(module)).__module__)
    users, rotation = getattr(file, _USERS, None), getattr(file, FUNCTION, None)
    if users is None:
        return
    users.discard(module)
    own = getattr(rotation, "registry_own", None)
    if not users and own is not None:
        setattr(file, FUNCTION, own)


def _rotated(module: torch.nn.Module, function: QkRotation, given: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """The rotation as a function of [batch, seq, 3 * head_dim], two heads of queries and one of keys."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) + 1
        heads = x.unflatten(-1, (3, -1)).transpose(1, 2)
        return torch.cat(function(heads[:, :2], heads[:, 2:], *module(x, positions, **given)), 1)

    return rotated


def _by_table(own: QkRotation) -> QkRotation:
    """The op where cosines carry its table, and ``own`` elsewhere. Queries and keys themselves are not changed."""

    @functools.wraps(own, updated=())
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if args or kwargs:
            return own(q, k, cos, sin, *args, **kwargs)
        if APPENDS.step is not None:
            return APPENDS.step.rotate(own, q, k, cos, sin)
        held: RotaryTables | None = None if is_dynamo_compiling() else getattr(cos, _TABLE, None)
        return own(q, k, cos, sin) if held is None else rotated_by_table(own, q, k, cos, sin, held)

    rotate.registry_own = own  # type: ignore[attr-defined]
    return rotate


def rotated_by_table(
    own: QkRotation, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, held: RotaryTables
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [batch, heads, seq, head_dim], rotated by the op; by ``own`` where it cannot compute them."""
    if not q.dtype is k.dtype is cos.dtype or not q.shape[-1] == k.shape[-1] == cos.shape[-1]:
        return own(q, k, cos, sin)
    # a row of the table for each of their tokens: torch's own would broadcast
    if not q.shape[::2] == k.shape[::2] == held.positions.shape or not q.numel():
        return own(q, k, cos, sin)
    learnt = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    # another sin: somebody rotates otherwise, with the model's cosines
    if sin is not held.sin or (learnt and (held.back is None or differentiating_otherwise())):
        return own(q, k, cos, sin)
    query, key = q.transpose(1, 2), k.transpose(1, 2)
    if learnt:
        query, key = _Rotation.apply(query, key, held)
    else:
        query, key = _copies(query, key, held.positions, held.table)
    return query.transpose(1, 2), key.transpose(1, 2)


class _Rotation(torch.autograd.Function):
    """Rotated copies of queries and keys [batch, seq, heads, head_dim], with their gradients."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, held: RotaryTables) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.held = held
        return _copies(q, k, held.positions, held.table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_copies(q, k, ctx.held.positions, ctx.held.back), None


def _copies(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated copies: a model may use the same keys as values, and hooks what q_proj returned."""
    query, key = (x.clone(memory_format=torch.contiguous_format) for x in (q, k))
    call("rotary_embedding", positions, query, key, q.shape[-1], table, True)
    return query, key


def tables_of(cos: torch.Tensor, sin: torch.Tensor, batch: int) -> RotaryTables:
    """The tables of cosines and sines [1 or batch, seq, head_dim], with a row for each of their positions."""
    count, seq, width = cos.shape
    half = width // 2
    one, other = cos[..., :half].reshape(-1, half), sin[..., :half].reshape(-1, half)
    positions = torch.arange(count * seq, device=cos.device).view(count, seq)
    return RotaryTables(
        positions if count == batch else positions.repeat(batch, 1),
        torch.cat((one, other), -1),
        torch.cat((one, -other), -1) if torch.is_grad_enabled() else None,
        sin,
    )
