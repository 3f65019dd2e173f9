"""The modes of dispatch, which limit the candidates that may answer a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from ..errors import InvalidArgumentError

VARIABLE = "KERNEL_REGISTRY_MODE"

Mode = Literal["tuned", "verified", "reference", "strict"]
"""``tuned``: the best known candidate. ``verified``: a candidate verified on this machine, else torch's own functions.
``reference``: always the op's reference. ``strict``: an error where nothing is tuned."""

REFERENCE_MODE = 'registry.configure(mode="reference")'
"""The reason, for explain, that the reference answers in mode "reference"."""


def checked_mode(mode: Any) -> Mode:
    """``mode``. Raises InvalidArgumentError unless it is the name of a mode."""
    return _checked(mode, f"configure(mode={mode!r:.80})")


def mode_of(environ: Mapping[str, str] = os.environ) -> Mode:
    """The mode that ``KERNEL_REGISTRY_MODE`` names, "tuned" where it is not set. Raises InvalidArgumentError."""
    mode = environ.get(VARIABLE) or "tuned"
    return _checked(mode, f"{VARIABLE}={mode!r:.80}")


def _checked(mode: Any, what: str) -> Mode:
    if not isinstance(mode, str) or mode not in get_args(Mode):
        raise InvalidArgumentError(what, hint=f"expected {', '.join(map(repr, get_args(Mode)))}")
    return cast("Mode", mode)
