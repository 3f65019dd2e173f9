"""The tokens that top_k and top_p keep, and the judgement of samples from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ...problem import Problem
from ..rounding import FLOAT32_UNIT, unit_roundoff


def weights_of(logits: torch.Tensor) -> torch.Tensor:
    """Exponentials ``[rows, cols]`` of logits, 1 for the largest of a row."""
    return (logits - logits.amax(-1, keepdim=True)).exp()


def thresholds(logits: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> torch.Tensor:
    """The least logit ``[rows, 1]`` that is kept of each row.

    top_k ``[rows]`` of less than 1 counts as 1, of more than the columns as all; top_p ``[rows]`` of at most 0 keeps
    the most probable token, of at least 1 all that top_k keeps.
    """
    least = torch.full_like(logits[:, :1], -math.inf)
    if top_k is None and top_p is None:
        return least
    cols = logits.shape[1]
    ordered = logits.sort(-1, descending=True).values
    if top_k is not None:
        least = ordered.gather(-1, (top_k.long().clamp(1, cols) - 1)[:, None])
    if top_p is not None:
        share = top_p.to(logits.dtype)[:, None]
        weights = weights_of(ordered).masked_fill(ordered < least, 0.0)
        masses = weights.cumsum(-1)
        # a token is needed where those before it do not make up the share
        needed = (masses - weights < share * masses[:, -1:]).sum(-1, keepdim=True).clamp_min(1)
        least = torch.where(share < 1.0, torch.maximum(least, ordered.gather(-1, needed - 1)), least)
    return least


class _Masses(NamedTuple):
    """Masses of kept tokens: each sample's own, that of all tokens up to it, and that of all, ``[rows]`` each."""

    own: torch.Tensor
    upto: torch.Tensor
    total: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, weights: torch.Tensor, least: torch.Tensor, found: torch.Tensor) -> _Masses:
        """The masses where logits of at least ``least`` are kept."""
        kept = weights.masked_fill(logits < least, 0.0)
        masses = kept.cumsum(-1)
        own, upto = (each.gather(-1, found[:, None])[:, 0] for each in (kept, masses))
        return cls(own, upto, masses[:, -1])


def mass_error(problem: Problem) -> float:
    """How far a sum of a row's weights may be off, relatively: exponentials, and sums over lanes or blocks."""
    unit = unit_roundoff(torch.float64) if problem.torch_dtype == torch.float64 else FLOAT32_UNIT
    return unit * (64.0 + 2.0 * math.sqrt(problem.cols))


def samples_are_right(
    problem: Problem,
    values: Mapping[str, Any],
    results: Mapping[str, torch.Tensor],
    _references: Mapping[str, torch.Tensor],
) -> Iterator[str]:
    """A fault unless each row's sample is the kept token at which the running mass passes ``uniform`` times all of it.

    Sums err, so that a token at the edge of top_p may be kept or not, and a sample may be the neighbour of the right
    one where the mass is passed just there. Of rows with NaN or infinity, or that are -inf alone, any token will do.
    """
    found = results["samples"].long()
    outside = (found < 0) | (found >= problem.cols)
    if outside.any():
        row = int(outside.nonzero()[0])
        yield f"samples[{row}] is {int(found[row])}, expected 0 to {problem.cols - 1}"
        return
    most = values["logits"].amax(-1)
    usable = most.isfinite().nonzero()[:, 0]
    logits, uniform = values["logits"][usable].double(), values["uniform"][usable].double()
    top_k, top_p = (None if values[name] is None else values[name][usable] for name in ("top_k", "top_p"))
    found, weights, error = found[usable], weights_of(logits), mass_error(problem)
    # without top_p nothing is at an edge
    fewest, all_ = (
        _Masses.of(logits, weights, thresholds(logits, top_k, share), found)
        for share in ((None, None) if top_p is None else _shares(top_p.double(), error))
    )
    first = (fewest.upto - fewest.own) / all_.total - error
    last = all_.upto / fewest.total + error
    wrong = (all_.own == 0.0) | (uniform < first) | (uniform > last)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        told = f"whose share of the kept mass is from {float(first[at]):.9g} to {float(last[at]):.9g}"
        yield (
            f"samples[{int(usable[at])}] is {int(found[at])}, "
            + ("which is not kept" if all_.own[at] == 0.0 else told)
            + f"; uniform is {float(uniform[at]):.9g}"
        )


def _shares(top_p: torch.Tensor, error: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest share that a sum within ``error`` may be compared with; none stays none."""
    return top_p - error, torch.where(top_p < 1.0, top_p + error, top_p)
