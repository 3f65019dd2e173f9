"""Winners that come with the package, in the exchange format.

A file holds the winners of one hardware name, ``nvidia-h200.jsonl`` those of "NVIDIA H200". It is made from a tuning
database by

    rm -f registry/shipped/nvidia-h200.jsonl && registry export --winners-only --hardware "NVIDIA H200" \\
        --db tuning.db registry/shipped/nvidia-h200.jsonl

tests/dispatch/test_shipped.py fails if one of them does not hold for the current sources.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tuning_db import CandidateKey, Decision, Final, TuningDBError

from ..errors import StoreError
from ..problem import canonical_json

VARIABLE = "KERNEL_REGISTRY_SHIPPED"
"""Environment variable: ``0`` ignores shipped winners, ``1`` is the default; a folder replaces the package's."""


DEFAULTS = "defaults.json"
"""The file of rules for defaults, in the folder of shipped winners: a list of hardware with its rules by op."""

_Winner = tuple[Decision, Mapping[str, CandidateKey]]
"""A winner, and the candidates that it was compared with, by implementation."""


def ignored() -> bool:
    """True if the user wants no shipped winners."""
    return _wanted() == "0"


def shipped(hardware: Mapping[str, Any], regime: str) -> tuple[Decision, ...]:
    """The winners shipped for exactly this hardware identity; reads only the file of its name.

    Raises StoreError for a file that cannot be read, and for a missing folder that the user has set.
    """
    return tuple(one for one, _ in _winners(hardware, regime))


def runners(hardware: Mapping[str, Any], regime: str) -> dict[str, dict[str, CandidateKey]]:
    """For shipped winners, by uid, the best candidate of each implementation in the finals, if the file has them.

    Raises StoreError as ``shipped`` does.
    """
    return {one.uid: dict(found) for one, found in _winners(hardware, regime) if found}


def _winners(hardware: Mapping[str, Any], regime: str) -> tuple[_Winner, ...]:
    if ignored():
        return ()
    return _read(_wanted(), canonical_json(dict(hardware)), str(hardware.get("name", "")), regime)


def learnt(hardware: Mapping[str, Any], op: str) -> tuple[Any, str] | None:
    """The shipped rule for an op's default on this hardware, as JSON, and the name of the hardware it was learnt on.

    The rule of exactly this hardware, else of another one of its type and architecture: a rule only orders defaults.
    None without one. Raises StoreError for a file that cannot be read.
    """
    rules = [] if ignored() else [one for one in _rules(_wanted()) if op in one["defaults"]]
    like = [one for one in rules if _kind(one["hardware"]) == _kind(hardware)]
    exact = [one for one in like if canonical_json(one["hardware"]) == canonical_json(dict(hardware))]
    found = next(iter([*exact, *like]), None)
    return None if found is None else (found["defaults"][op], str(found["hardware"].get("name")))


def forget() -> None:
    """Drops the cached content of the files: those in a folder that the user has set may have changed."""
    _read.cache_clear()
    _rules.cache_clear()


def origin() -> str:
    """The source of shipped winners, for messages: ``kernel-registry 0.1.0``."""
    from .. import __version__

    return _wanted() or f"kernel-registry {__version__}"


def names() -> list[str]:
    """The names of the shipped files, without their suffix."""
    folder = _folder(_wanted())
    found = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(name.removesuffix(".jsonl") for name in found if name.endswith(".jsonl"))


def file_name(hardware_name: str) -> str:
    """The name of the file for a hardware name: ``nvidia-h200.jsonl`` for ``NVIDIA H200``."""
    return f"{re.sub(r'[^a-z0-9]+', '-', hardware_name.lower()).strip('-')}.jsonl"


def _kind(hardware: Mapping[str, Any]) -> tuple[str, str]:
    """The type and the architecture of a hardware, without a CPU's vector instructions: ``("cpu", "x86_64")``."""
    return str(hardware.get("type")), next(iter(str(hardware.get("architecture")).split()), "")


def _wanted() -> str:
    given = os.environ.get(VARIABLE, "").strip()
    return "" if given == "1" else os.path.expanduser(given)  # noqa: PTH111 - Path raises for an unknown user


def _folder(given: str) -> Traversable:
    return Path(given) if given else files(__name__)


@lru_cache(maxsize=16)
def _rules(folder: str) -> tuple[dict[str, Any], ...]:
    file = _folder(folder).joinpath(DEFAULTS)
    if not file.is_file():
        return ()
    try:
        return tuple(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as fault:
        raise StoreError(f"{file}: {fault}", hint=f"reinstall kernel-registry, or set {VARIABLE}=0") from fault


@lru_cache(maxsize=16)
def _read(folder: str, identity: str, name: str, regime: str) -> tuple[_Winner, ...]:
    if folder and not Path(folder).is_dir():
        raise StoreError(f"{VARIABLE}={folder}: no such folder", hint=f"expected 0, 1 or a folder of {file_name(name)}")
    file = _folder(folder).joinpath(file_name(name))
    if not file.is_file():
        return ()
    # a parser that needs neither SQLAlchemy nor a database
    from tuning_db.exchange import DecisionLine, WinnerLine
    from tuning_db.exchange import lines as read_lines

    try:
        with file.open(encoding="utf-8") as stream:
            contents = [content for _, content in read_lines(stream)]
    except (TuningDBError, OSError) as fault:
        told = fault.message if isinstance(fault, TuningDBError) else str(fault.strerror)
        raise StoreError(f"{file}: {told}", hint=f"reinstall kernel-registry, or set {VARIABLE}=0") from fault
    winning = {content.decision for content in contents if isinstance(content, WinnerLine)}
    return tuple(
        (decision, _best_of_each(content.finals))
        for content in contents
        if isinstance(content, DecisionLine)
        and (decision := content.decision).uid in winning
        and decision.protocol.regime == regime
        and canonical_json(dict(decision.environment.hardware)) == identity
    )


def _best_of_each(finals: Iterable[Final]) -> dict[str, CandidateKey]:
    ranked = sorted((one for one in finals if one.candidate is not None), key=lambda one: -one.us)
    return {one.candidate.implementation: one.candidate for one in ranked if one.candidate is not None}
