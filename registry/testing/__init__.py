"""Checks for authors of ops and implementations. Both functions return a Report or raise CheckError.

from registry.testing import check_implementation

def test_row_softmax() -> None:
    check_implementation(RowSoftmax(), SOFTMAX)
"""

from .implementation_check import check_implementation
from .op_check import check_op
from .reports import Report

__all__ = ["Report", "check_implementation", "check_op"]
