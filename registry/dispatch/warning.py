"""Warnings of dispatch, told at the line of the user's code that made the call."""

from __future__ import annotations

import sys
import warnings

from ..author_code import outer_frame


class DispatchWarning(RuntimeWarning):
    """Something that was tuned or declared cannot be used; the call is answered by something else."""


def warn_caller(text: str) -> None:
    """Warn at the innermost line outside of this package: how deep that is depends on the path a call took."""
    frame = outer_frame(sys._getframe(1))
    warnings.warn_explicit(
        text,
        DispatchWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
