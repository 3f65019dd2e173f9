"""Positions that a model counts itself: then each row holds one sequence, and causal attention needs no mask.

In a forward without mask and cache transformers looks for several sequences packed into a row, which their positions
would tell. A program of torch.compile cannot look, so that its attention runs under a mask: in a training step of
Llama-3.2-1B's widths on an H200 its kernels took 31 ms with it, and 12 without. In eager code the host waits for the
answer in each forward.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import masking_utils

from ..layer_proofs import shell_of
from ..swapping import has_hooks

_FUNCTION = "_preprocess_mask_arguments"
"""transformers' function that gets a model's configuration and its positions [batch, seq], before a mask is made."""
_OWN = "transformers."
"""How the names of modules begin whose models are known to count tokens, or to read positions from special tokens."""


class CountedPositions(threading.local):
    """What this thread's forward of a model knows of its positions.

    ``config``: the configuration of a model that counts them; ``answers``: in a proof, for each mask whether positions
    were one sequence a row, and None outside.
    """

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees these attributes come into being
        self.config: Any = None
        self.answers: list[bool] | None = None


POSITIONS = CountedPositions()
"""What the forward of each thread knows."""


def counts_positions(model: Any, layers: str) -> bool:
    """Whether positions that the model makes for tokens without mask and cache are those of one sequence a row.

    By runs of the model's own forward without its ``layers``, of a class of transformers' own: another may take any
    token for the begin of a sequence. A model with hooks is not run.
    """
    own = type(model)
    others = [one for name, child in model.named_children() if name != layers for one in child.modules()]
    if not own.__module__.startswith(_OWN) or any(map(has_hooks, others)) or not _look():
        return False
    shell = shell_of(model, {layers: torch.nn.ModuleList()})
    POSITIONS.answers = []
    try:
        with torch.no_grad():
            for given in _inputs(model):
                own.forward(shell, **given, use_cache=False)
    except Exception:  # a model's code may raise anything for layers that it does not have
        return False
    finally:
        answers, POSITIONS.answers = POSITIONS.answers, None
    return bool(answers) and all(answers)


def _inputs(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Tokens with the special ones of the model among them, and their embeddings alone."""
    special = (getattr(model.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "sep"))
    several = [one for found in special for one in (found if isinstance(found, list) else [found])]
    known = [one for one in several if isinstance(one, int) and 0 <= one < model.config.vocab_size]
    embedding = model.get_input_embeddings()
    tokens = torch.tensor([[1, *known, 2, *known, 1]], device=embedding.weight.device)
    yield {"input_ids": tokens}
    yield {"inputs_embeds": embedding(tokens)}


def _look() -> bool:
    """Let transformers' function know what is known of positions; False for a transformers without such a one."""
    own: Callable[..., Any] | None = getattr(masking_utils, _FUNCTION, None)
    if own is None or not {"config", "position_ids"} <= inspect.signature(own).parameters.keys():
        return False
    if not hasattr(own, "registry_own"):
        setattr(masking_utils, _FUNCTION, _knowing(own))
    return True


def _knowing(own: Callable[..., Any]) -> Callable[..., Any]:
    names = [*inspect.signature(own).parameters]

    @functools.wraps(own)
    def preprocess(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        positions = given.get("position_ids")
        if POSITIONS.answers is not None and positions is not None:
            POSITIONS.answers.append(bool((positions.diff(dim=-1) == 1).all()))
        if POSITIONS.config is not None and POSITIONS.config is given.get("config"):
            given["position_ids"] = None
        return own(**given)

    preprocess.registry_own = own  # type: ignore[attr-defined]
    return preprocess
