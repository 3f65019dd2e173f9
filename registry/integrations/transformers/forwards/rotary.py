"""Rotary positions of queries and keys by rotary_embedding, and by apply_rotary where gradients are needed.

Attention of transformers' models calls a function of their own file, mostly ``apply_rotary_pos_emb``, with the cosines
and sines that a module of the model has computed once for all layers. That module is swapped: its cosines then carry
the op's table. The function is replaced in its file, for all models of that class, by one that runs the op where
cosines carry a table, and itself elsewhere. So is each of several functions, of which a model's configuration chooses.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....contracts.checks import HALVES
from ....dispatch.torch_side.states import differentiating_otherwise
from ..proofs import disagreement
from ..swapping import Swapped, other_forward, swap, unswap
from .cache_appends import APPENDS, QkRotation
from .rotary_forms import BY_HALVES, Angles, RotaryForm, cosines_and_sines, known_functions, other_rotations

_USERS = "registry_rotaries"
_TABLE = "registry_table"


class RotaryTables(NamedTuple):
    """What cosines carry: positions [batch, seq], the ops' table for them, and the sines.

    Angles that are one tensor, of complex numbers, carry these, and there are no sines.
    """

    positions: torch.Tensor
    table: torch.Tensor
    sin: torch.Tensor | None


class RotaryForward(Swapped):
    """The module's own cosines and sines; the cosines carry ``RotaryTables``.

    Under torch.compile they do not: Inductor fuses the rotation with what stands around it, unless one op also appends
    keys to a static cache.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = super().forward(x, *args, **kwargs)
        angles = made if isinstance(made, tuple) else (made,)
        if not is_dynamo_compiling():
            setattr(angles[0], _TABLE, tables_of(angles, x.shape[0]))
        if APPENDS.tables is not None and APPENDS.active and len(angles) == 2:
            table = torch.cat(cosines_and_sines(angles), -1)
            APPENDS.tables.append((*angles, table.expand(x.shape[0], -1, -1)))
        return made


def replace_rotary(module: torch.nn.Module, like: torch.Tensor) -> str | None:
    """Replace a rotary module's forward and the functions of its file that rotate by it.

    ``like`` has the dtype and the device of the model's activations. Returns why not, "" if it is replaced, and None
    for another module.
    """
    frequencies = [buffer for name, buffer in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    file = sys.modules.get(type(module).__module__)
    known = known_functions(file)
    if not frequencies or not known:
        return None
    if told := other_forward(module):
        return told
    others = other_rotations(file)
    if others:
        return f"its file has several rotations: {', '.join(others)}"
    for _, own in known:
        plain: QkRotation = getattr(own, "registry_own", own)
        if isinstance(plain, torch.nn.Module) and (told := other_forward(plain)):
            return told
    rotations = [(form, own if hasattr(own, "registry_own") else _by_table(own, form)) for form, own in known]
    swap(module, RotaryForward)
    for _, rotation in rotations:
        told = _disproof(module, rotation, 6 * frequencies[0].numel(), like)
        if told:
            unswap(module)
            return told
    users = vars(file).setdefault(_USERS, weakref.WeakSet())
    users.add(module)
    for form, rotation in rotations:
        setattr(file, form.function, rotation)
    return ""


def restore_rotary(module: torch.nn.Module) -> None:
    """Put the functions of a replaced module's file back, if no other module that was replaced rotates by them.

    Copies of replaced modules do not count: without the functions they rotate by the model's own.
    """
    file = sys.modules.get(getattr(type(module), "registry_class", type(module)).__module__)
    users = getattr(file, _USERS, None)
    if users is None:
        return
    users.discard(module)
    for form, rotation in known_functions(file) if not users else ():
        setattr(file, form.function, getattr(rotation, "registry_own", rotation))


def _disproof(module: torch.nn.Module, rotation: QkRotation, cols: int, like: torch.Tensor) -> str:
    """How a rotation differs from the function in whose place it is to be; "" if it does not."""
    plain: QkRotation = rotation.registry_own  # type: ignore[attr-defined]
    for layer_type in getattr(module, "layer_types", (None,)):
        given = {} if layer_type is None else {"layer_type": layer_type}
        told = disagreement(_rotated(module, plain, given), _rotated(module, rotation, given), cols, like)
        if told:
            return told
    return ""


def _rotated(module: torch.nn.Module, function: QkRotation, given: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """The rotation as a function of [batch, seq, 3 * head_dim], two heads of queries and one of keys."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) + 1
        heads = x.unflatten(-1, (3, -1)).transpose(1, 2)
        made = module(x, positions, **given)
        return torch.cat(function(heads[:, :2], heads[:, 2:], *(made if isinstance(made, tuple) else (made,))), 1)

    return rotated


def _by_table(own: QkRotation, form: RotaryForm) -> QkRotation:
    """An op where angles carry its table, and ``own`` elsewhere. Queries and keys themselves are not changed."""

    @functools.wraps(own, updated=())
    def rotate(q: torch.Tensor, k: Any = None, *angles: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # some rotate queries alone
        plain = k is not None and not kwargs and form.takes(angles)
        if APPENDS.step is not None and form is BY_HALVES and plain:
            return APPENDS.step.rotate(own, q, k, *angles)
        held: RotaryTables | None = None if is_dynamo_compiling() or not plain else getattr(angles[0], _TABLE, None)
        if held is None:
            return own(q, k, *angles, **kwargs)
        return rotated_by_table(own, form, q, k, angles, held)

    rotate.registry_own = own  # type: ignore[attr-defined]
    return rotate


def rotated_by_table(
    own: QkRotation, form: RotaryForm, q: torch.Tensor, k: torch.Tensor, angles: Angles, held: RotaryTables
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys [batch, heads, seq, head_dim], rotated by an op; by ``own`` where it cannot compute them."""
    if not _fits(q, k, angles[0], held):
        return own(q, k, *angles)
    learnt = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    # another sin: somebody rotates otherwise, with the model's cosines
    another = held.sin is not None and angles[-1] is not held.sin
    if another or (learnt and (held.table.requires_grad or differentiating_otherwise())):
        return own(q, k, *angles)
    query, key = q.transpose(1, 2), k.transpose(1, 2)
    rest = (q.shape[-1], held.table, form.neox)
    if learnt:
        query, key = call("apply_rotary", held.positions, form.placed(query), form.placed(key), *rest)
    else:
        # copies: a model may use the same keys as values, and hooks what q_proj returned
        query, key = (form.copied(x) for x in (query, key))
        call("rotary_embedding", held.positions, query, key, *rest)
    return query.transpose(1, 2), key.transpose(1, 2)


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, held: RotaryTables) -> bool:
    """Whether the op takes queries and keys with a table, and rounds them as the model's own function does."""
    if q.dtype is not k.dtype or not q.shape[-1] == k.shape[-1] == held.table.shape[1]:
        return False
    # a row of the table for each of their tokens: torch's own would broadcast
    if not q.shape[::2] == k.shape[::2] == held.positions.shape or not q.numel():
        return False
    # complex numbers are in fp32, in which the function rotates halves, too
    return q.dtype in {*HALVES, held.table.dtype} if cos.is_complex() else q.dtype is cos.dtype


def tables_of(angles: Angles, batch: int) -> RotaryTables:
    """The tables of angles [1 or batch, seq, ...], with a row for each of their positions."""
    cos, sin = cosines_and_sines(angles)
    count, seq, half = cos.shape
    one, other = cos.reshape(-1, half), sin.reshape(-1, half)
    positions = torch.arange(count * seq, device=cos.device).view(count, seq)
    return RotaryTables(
        positions if count == batch else positions.repeat(batch, 1),
        torch.cat((one, other), -1),
        angles[1] if len(angles) == 2 else None,
    )
