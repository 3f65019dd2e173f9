"""The contract of an op: its semantics, the problem that a call poses, and the tolerance of a result."""

from .canonical import CanonicalCall, canonical_call
from .definition_checks import COUNT
from .fake import RowMajor, Rule
from .gradient import Backward
from .op import Op
from .outputs import Outputs, as_tuple
from .packed_call import Packed
from .tolerance import Comparator, Floor, Tolerance
from .transfer import checked_range, octave

__all__ = [
    "COUNT",
    "Backward",
    "CanonicalCall",
    "Comparator",
    "Floor",
    "Op",
    "Outputs",
    "Packed",
    "RowMajor",
    "Rule",
    "Tolerance",
    "as_tuple",
    "canonical_call",
    "checked_range",
    "octave",
]
