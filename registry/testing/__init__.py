"""Checks for authors of ops and implementations. Each returns a Report, or nothing, or raises CheckError.

from registry.testing import check_implementation

def test_row_softmax() -> None:
    check_implementation(RowSoftmax(), SOFTMAX)
"""

from .frequencies import check_frequencies
from .implementation_check import check_implementation
from .op_check import check_op
from .reports import Report

__all__ = ["Report", "check_frequencies", "check_implementation", "check_op"]
