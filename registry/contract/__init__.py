"""The contract of an op: what it computes, how a call becomes a problem, how right an answer must be."""

from .fake import RowMajor
from .gradient import Backward
from .op import COUNT, Op, Outputs, as_tuple
from .packed_call import Packed
from .tolerance import Comparator, Floor, Tolerance
from .transfer import checked_range, octave

__all__ = [
    "COUNT",
    "Backward",
    "Comparator",
    "Floor",
    "Op",
    "Outputs",
    "Packed",
    "RowMajor",
    "Tolerance",
    "as_tuple",
    "checked_range",
    "octave",
]
