"""Warnings of dispatch, told at the line of the user's code that made the call."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


class DispatchWarning(RuntimeWarning):
    """Something that was tuned or declared cannot be used; the call is answered by something else."""


def warn_caller(text: str) -> None:
    """Warn at the innermost line outside of this package: how deep that is depends on the path a call took."""
    frame = _caller(sys._getframe(1))
    warnings.warn_explicit(
        text,
        DispatchWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _caller(frame: FrameType) -> FrameType:
    """The outermost frame where all of them are this package's, as in its own commands."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame
