"""Importers: kernels in the forms of other projects become ops and implementations, from the files where they lie."""

from .detection import op_of, reference_of, submission_of

__all__ = ["op_of", "reference_of", "submission_of"]
