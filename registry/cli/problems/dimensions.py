"""Dimensions of a problem as words of a command line: ``rows=64 cols=300``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError, ShapesFileError
from ...untrusted.yaml_document import Document

if TYPE_CHECKING:
    from ...contract import Op


def dimensions_of(op: Op, pairs: Iterable[str]) -> dict[str, Any]:
    """Dimensions from texts ``DIM=VALUE``. Raises InvalidArgumentError."""
    given: dict[str, Any] = {}
    for name, value in (_dimension(op, pair) for pair in pairs):
        if name in given:
            raise InvalidArgumentError(f"{name} was given twice", hint=f"give each dimension of {op.name} once")
        given[name] = value
    return given


def _dimension(op: Op, pair: str) -> tuple[str, Any]:
    name, given, value = pair.partition("=")
    if not given or not value:
        known = ", ".join(sorted(op.static | op.dynamic))
        raise InvalidArgumentError(f"{pair!r} is not DIM=VALUE", hint=f"{op.name} has the dimensions {known}")
    try:
        return name, Document(pair, value).data
    except ShapesFileError:
        return name, value  # any other value is text, which the check of dimensions refuses
