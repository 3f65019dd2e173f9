"""How a model runs: its workload, and the kinds of steps that this makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NEW_TOKENS = 128
"""Tokens that a request makes, for the weights: each decode step counts so often, the prompt once."""

Quantization = Literal["none", "int8", "int4", "int2", "int1", "nf4", "fp8", "w8a8", "w4a8"]


@dataclass(frozen=True)
class Workload:
    """How a model runs: sequences at once, their lengths in tokens, dtype, quantisation of its layers' weights.

    ``symmetric``: packed weights have no zero points. ``lm_head``: the output layer is quantised, too. ``page``: slots
    of a page of the cache, 0 for a cache in rows. ``separate``: layers of one input stay apart, as the model has them.
    ``training``: forward and backward over sequences of ``context`` tokens, instead of a prompt and new tokens.
    """

    batch: tuple[int, ...] = (1, 16)
    context: tuple[int, ...] = (1024,)
    dtype: str = "bfloat16"
    quantize: Quantization = "none"
    group_size: int = 128
    symmetric: bool = False
    lm_head: bool = False
    page: int = 0
    separate: bool = False
    training: bool = False


@dataclass(frozen=True)
class Phase:
    """One kind of step: ``q_len`` new tokens of each of ``batch`` sequences, which then have ``context`` tokens."""

    batch: int
    q_len: int
    context: int
    times: int
    kind: Literal["prefill", "decode", "training"]

    @property
    def tokens(self) -> int:
        return self.batch * self.q_len


def phases(batch: int, context: int, *, training: bool) -> list[Phase]:
    if training:
        return [Phase(batch, context, context, 1, "training")]
    return [Phase(batch, context, context, 1, "prefill"), Phase(batch, 1, context, NEW_TOKENS, "decode")]
