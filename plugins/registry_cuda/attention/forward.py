"""attention's forward on Hopper's warpgroup tensor cores: a batch of sequences of one length."""

from __future__ import annotations

from collections.abc import Iterable

from registry import Config, Device, Launch, Problem

from .head_tiles import HeadTiles, head_tiles
from .wgmma import WARPGROUP_ROWS, WgmmaForward, counting_reasons, logit_arguments, rows_of, source_of, together


class WgmmaAttention(WgmmaForward):
    """Attention of a batch of sequences of one length, as FlashAttention 3 has it."""

    op = "attention"
    source = source_of("batch")
    function = "attention_forward"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.mask != "none":
            yield "it takes no mask"
        if problem.kv_len == 0:
            yield "there are no keys"
        tiles = problem.batch * problem.heads * -(-problem.q_len // WARPGROUP_ROWS)
        yield from counting_reasons(tiles, problem.q_len, problem.kv_len)

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 ahead of cuDNN in causal attention, 691 to 620 TFLOP/s over 8192 tokens, else 2 to 4% behind."""
        if problem.q_len < WARPGROUP_ROWS:
            return 0.7
        return 2.0 if problem.causal else 1.4

    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensors ``[batch, length, heads, head_dim]``."""
        return head_tiles(problem, name, height)

    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of each sequence."""
        return problem.q_len, problem.kv_len

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        heads, blocks = problem.batch * problem.heads, -(-problem.q_len // rows_of(config))
        at_once = together(problem, heads, problem.kv_len)
        sizes = (*logit_arguments(problem), problem.q_len, problem.kv_len, blocks, heads, at_once)
        return self.launch_of(problem, config, device, heads * blocks, sizes)
