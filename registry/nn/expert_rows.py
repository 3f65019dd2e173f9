"""Rows of tokens in the order of their experts, as grouped products take them, and the sums of their outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ExpertRows:
    """A row for each token and each of its experts, those of one expert one after another.

    offsets  where each expert's rows begin, and the end of the last one's, ``[experts + 1]``
    order    the row of ``top_k_index``, flattened, that each row is of
    top_k    the experts of a token
    """

    offsets: torch.Tensor
    order: torch.Tensor
    top_k: int

    @classmethod
    def of(cls, top_k_index: torch.Tensor, experts: int) -> ExpertRows:
        """The rows of tokens whose experts are ``top_k_index [tokens, top_k]``; a number of ``experts`` is none."""
        expert, order = torch.sort(top_k_index.reshape(-1), stable=True)
        edges = torch.arange(experts + 1, device=expert.device, dtype=expert.dtype)
        return cls(torch.searchsorted(expert, edges), order, top_k_index.shape[1])

    def gathered(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The rows ``[tokens * top_k, hidden]`` of tokens ``[tokens, hidden]``."""
        return hidden_states.index_select(0, self.order // self.top_k)

    def summed(self, y: torch.Tensor, top_k_weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Each token's outputs, weighted by ``top_k_weights [tokens, top_k]`` and summed: ``[tokens, hidden]``."""
        # back in the tokens' order: a sum over neighbours is deterministic, as adding by index is not
        of_tokens = y.index_select(0, torch.argsort(self.order)).view(*top_k_weights.shape, y.shape[-1])
        return (of_tokens * top_k_weights.unsqueeze(-1)).sum(1).to(dtype)
