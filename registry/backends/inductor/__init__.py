"""torch.compile: a function compiled by Inductor for one shape, kept as an artifact."""

from . import headers
from .implementation import InductorImplementation

headers.install()

__all__ = ["InductorImplementation"]
