"""torch.compile: a function compiled by Inductor for one shape, kept as an artifact."""

from .implementation import InductorImplementation

__all__ = ["InductorImplementation"]
