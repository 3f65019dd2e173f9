"""The identity of compiled code: a hash of everything by which its calls are resolved, for torch's caches."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import get_hash_for_files

from ...contract import Op, RowMajor
from ...device import Device
from ...errors import UnknownNameError
from ...problem import canonical_json
from ..resolve.answers_or_faults import asked
from ..resolve.winners import OpWinners
from ..resolve.winners.rankings import ranked_evidence
from .call_site import Callee


def identity_hash(names: Iterable[str], bound: Callable[[str], Any], sources: Sequence[str], *settings: object) -> str:
    """A hash of the winners of ops and of their backward ops, with their evidence, and of what chooses these.

    ``bound(name)``: the bound op of a name; names that it does not know are left out. ``sources``: files of the code
    that generates code. ``settings``: plain data of which that depends.
    """
    known = dict(_known(names, bound))
    backward = [op.backward.op for callee in known.values() if (op := callee.op).backward is not None]
    known.update(_known([name for name in backward if name is not None], bound))
    told = {name: _resolved_by(known[name]) for name in sorted(known)}
    code = get_hash_for_files(tuple(sources)).hex()
    return hashlib.sha256(canonical_json([code, *settings, told]).encode()).hexdigest()


def _known(names: Iterable[str], bound: Callable[[str], Any]) -> Iterator[tuple[str, Callee]]:
    for name in names:
        with suppress(UnknownNameError):
            yield name, bound(name)


def _resolved_by(callee: Callee) -> Mapping[str, Any]:
    """Everything by which calls of an op are resolved: its winners, its implementations and the mode."""
    op, plans = callee.op, callee.plans
    devices = (Device.of("cpu"), *(Device.visible() if torch.cuda.is_initialized() else ()))
    hardware = {canonical_json(dict(device.hardware())): device for device in devices}
    return {
        "version": op.version,
        "outputs": _source_of_outputs(op),
        "mode": plans.mode(),
        "checked": callee.checked,
        "forced": callee.watchers[0].active > 0,
        "implementations": sorted(
            (one.name, asked(one, "fingerprint", one.fingerprint)) for one in plans.implementations
        ),
        "winners": {text: _winners(op, plans.winners(device)) for text, device in hardware.items()},
    }


def _source_of_outputs(op: Op) -> str:
    """Hashes of the files that say how outputs lie, by which compiled code reads them; "" without a file."""
    told = op.reference if op.fake is None else op.fake
    parts = (told.rule, told.otherwise) if isinstance(told, RowMajor) else (told,)
    digests = [hashlib.sha256(content).hexdigest() for part in parts for content in _contents(part)]
    return " ".join(digests)


def _contents(code: Any) -> Iterator[bytes]:
    """The contents of the files that define a function, what a partial calls, or the class of a callable object."""
    code = inspect.unwrap(code)
    while isinstance(code, partial):
        code = inspect.unwrap(code.func)
    # an object's class may inherit its __call__ from one of another file
    for defined in (code,) if inspect.isroutine(code) else (type(code), type(code).__call__):
        with suppress(OSError, TypeError):
            yield Path(inspect.getfile(defined)).read_bytes()


def _winners(op: Op, found: OpWinners) -> str:
    return hashlib.sha256(_text(frozenset(ranked_evidence(found.placed, op).items())).encode()).hexdigest()


def _text(value: Hashable) -> str:
    """``repr`` of nested tuples and sets, the same in each process: the order of a set depends on it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return f"{{{', '.join(sorted(map(_text, value)))}}}" if isinstance(value, frozenset) else repr(value)
