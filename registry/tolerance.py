"""How much work an op is at least, and how far a result may be from its float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .problem import Problem


@dataclass(frozen=True)
class Floor:
    """The least work: ``bytes`` that must cross device memory (inputs read once, outputs written once), ``flop``."""

    bytes: int
    flop: int


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 reference: ``|out - ref| <= rtol * scale + atol``.

    ``rtol`` and ``atol`` are per dtype name. ``scale(problem, reference)`` is a float64 tensor that broadcasts
    against the reference: the magnitude that errors are relative to, grown with the reduction's length. What a call
    leaves in an argument that it mutates is judged like an output: ``scale`` is asked about that too, and it may have
    another shape. Whole rows of a large result are asked about at a time. Of results that are not floating, which must
    equal the reference, nothing is asked.
    """

    rtol: Mapping[str, float]
    atol: Mapping[str, float]
    scale: Callable[[Problem, torch.Tensor], torch.Tensor]
