"""FlexAttention's operator without torch.compile around it, which torch keeps private: what a graph is traced of."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

ScoreMod = Callable[..., torch.Tensor]
"""Takes a logit, the numbers of its batch, head, query and key, all tensors of one element, and masks.

Returns the logit."""


def missing() -> list[str]:
    """Names that this version of torch lacks, of those that are used here."""
    names = {"_apply_kernel_options": flex, "flex_attention": importlib.import_module("torch._higher_order_ops")}
    return [name for name, module in names.items() if not hasattr(module, name)]


def traceable(
    heads: Sequence[torch.Tensor],
    score_mod: ScoreMod,
    masks: tuple[torch.Tensor, ...],
    blocks: BlockMask,
    scale: float,
    options: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of q, k and v with heads before rows, as the public ``flex_attention`` returns them.

    The public function compiles what it calls at once where torch.compile is not already at work. ``score_mod`` gets
    the ``masks`` behind its numbers: a tensor that it read otherwise would be a constant of the traced graph.
    """
    operator = importlib.import_module("torch._higher_order_ops").flex_attention
    q, k, v = heads
    given = flex._apply_kernel_options(q, k, v, False, cast("Any", dict(options)), AuxRequest(lse=True))
    out, lse, _ = operator(q, k, v, score_mod, blocks.as_tuple(), scale, given, masks, ())
    # the operator takes logarithms to base 2
    return out, lse * math.log(2.0)
