"""Positions that a model counts itself: then each row holds one sequence, and causal attention needs no mask.

In a forward without mask and cache transformers looks for several sequences packed into a row, which their positions
would tell. A program of torch.compile cannot look, so that its attention gets a mask, with which it takes 2.5 times as
long (training Llama-3.2-1B's widths on an H200). In eager code the host waits for the answer in each forward.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from transformers import masking_utils

from ..layer_proofs import shell_of

_FUNCTION = "find_packed_sequence_indices"
"""transformers' function that finds packed sequences in positions [batch, seq]: their numbers, None for one a row."""

SequenceSearch = Callable[[torch.Tensor], torch.Tensor | None]


class CountedPositions(threading.local):
    """What this thread's forward of a model knows of its positions.

    ``counted``: the model counts them; ``answers``: in a proof, for each search for packed sequences whether it found
    none, and None outside.
    """

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees these attributes come into being
        self.counted = False
        self.answers: list[bool] | None = None


POSITIONS = CountedPositions()
"""What the forward of each thread knows."""


def counts_positions(model: Any, layers: str) -> bool:
    """Whether positions that the model makes for tokens without mask and cache are those of one sequence a row.

    By a run of the model's own forward without its ``layers``.
    """
    if not _look():
        return False
    shell = shell_of(model, {layers: torch.nn.ModuleList()})
    POSITIONS.answers = []
    try:
        with torch.no_grad():
            tokens = torch.arange(1, 4, device=model.get_input_embeddings().weight.device)[None]
            type(model).forward(shell, input_ids=tokens, use_cache=False)
    except Exception:  # a model's code may raise anything for layers that it does not have
        return False
    finally:
        answers, POSITIONS.answers = POSITIONS.answers, None
    return bool(answers) and all(answers)


def _look() -> bool:
    """Let transformers' function know what is known of positions; False for a transformers that has none."""
    own: SequenceSearch | None = getattr(masking_utils, _FUNCTION, None)
    if own is not None and not hasattr(own, "registry_own"):
        setattr(masking_utils, _FUNCTION, _knowing(own))
    return own is not None


def _knowing(own: SequenceSearch) -> SequenceSearch:
    @functools.wraps(own)
    def find(position_ids: torch.Tensor) -> torch.Tensor | None:
        if POSITIONS.counted:
            return None
        found = own(position_ids)
        if POSITIONS.answers is not None:
            POSITIONS.answers.append(found is None)
        return found

    find.registry_own = own  # type: ignore[attr-defined]
    return find
