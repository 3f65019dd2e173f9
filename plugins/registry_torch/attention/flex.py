"""FlexAttention (Dong et al., 2024): attention by a kernel that Inductor writes for a form of logits and of masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from registry.artifact import Artifact, Built, Signature, Target, Variant
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Argument, Arguments, Problem
from registry.space import Config

from . import flex_private, reasons
from .block_masks import BLOCK, WHOLE, SeenBlocks, block_specs, seen_blocks

_LEAST_WIDTH = 16
_ROOM = 8.0
"""An additive mask's numbers below the lowest one of the dtype over this are read as one: all such keys of a row weigh
the same, and nothing beside any other."""
_NAMES = ("partial_numbers", "partial_places", "full_numbers", "full_places")
_KEPT: dict[int, tuple[torch.Tensor | None, ...]] = {}
"""Blocks that a captured graph reads, which may outlive the plan that made them."""


class FlexCall(NamedTuple):
    """The values of a call in the schema's order, and the tensors of the blocks that are seen behind them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    scale: float
    softcap: float
    window: int
    partial_numbers: torch.Tensor
    partial_places: torch.Tensor
    full_numbers: torch.Tensor | None
    full_places: torch.Tensor | None

    @property
    def reads_lowest(self) -> bool:
        """Whether an additive mask may hold numbers that are infinite times log2(e), by which logits are multiplied."""
        return self.mask is not None and self.mask.dtype in {torch.bfloat16, torch.float32}

    def score_mod(self) -> flex_private.ScoreMod:
        """The logit with its cap and its mask, which is given behind the numbers and may be of one batch or head."""
        softcap, least = self.softcap, torch.finfo(self.q.dtype).min / _ROOM
        raises, is_bool = self.reads_lowest, self.mask is not None and self.mask.dtype == torch.bool

        def modified(
            logit: torch.Tensor,
            batch: torch.Tensor,
            head: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor,
            *masks: torch.Tensor,
        ) -> torch.Tensor:
            if softcap > 0.0:
                logit = torch.tanh(logit / softcap) * softcap
            for mask in masks:
                # times 0 where there is one for all: a number among the indices would be copied to the device
                of_pair = mask[batch * int(mask.shape[0] > 1), head * int(mask.shape[1] > 1), query, key]
                if is_bool:
                    logit = torch.where(of_pair, logit, -math.inf)
                else:
                    logit = logit + (_raised(of_pair, least) if raises else of_pair)
            return logit

        return _without_annotations(modified)

    def blocks(self) -> BlockMask:
        """The blocks with the rule for keys of partial ones."""
        q_len, kv_len = self.q.shape[1], self.k.shape[1]
        limited = self.full_numbers is not None
        size, lengths = (BLOCK, (q_len, kv_len)) if limited else (WHOLE, (1, 1))
        return BlockMask(
            seq_lengths=lengths, kv_num_blocks=self.partial_numbers, kv_indices=self.partial_places,
            full_kv_num_blocks=self.full_numbers, full_kv_indices=self.full_places, q_num_blocks=None, q_indices=None,
            full_q_num_blocks=None, full_q_indices=None, BLOCK_SIZE=(size, size),
            mask_mod=_seen(kv_len - q_len, self.causal, self.window) if limited else _without_annotations(_all_seen),
        )  # fmt: skip


def _raised(bias: torch.Tensor, least: float) -> torch.Tensor:
    """A mask's number, but -inf at least ``least``, beside which a logit vanishes too."""
    return torch.where(bias == -math.inf, bias, bias.clamp(min=least))


def _all_seen(batch: torch.Tensor, _head: torch.Tensor, _query: torch.Tensor, _key: torch.Tensor) -> torch.Tensor:
    return batch.new_ones((), dtype=torch.bool)


def _seen(shift: int, causal: bool, window: int) -> Callable[..., torch.Tensor]:
    """Whether a query sees a key, whose own one is ``shift`` behind it."""

    def seen(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        ahead = key - query - shift
        if window < 0:
            return ahead <= 0
        return (ahead <= (0 if causal else window)) & (ahead >= -window)

    return _without_annotations(seen)


def _without_annotations(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, whose traced graph torch 2.11 can save: annotations that are texts are part of it, and no names."""
    function.__annotations__ = {}
    return function


def by_flex_attention(call: FlexCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, row-major, under torch.compile or to be traced."""
    heads = [x.transpose(1, 2) for x in call[:3]]
    masks = () if call.mask is None else (call.mask,)
    # torch's kernel for few queries finds no tiles for some numbers of them: 77 with four heads to one of keys
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": call.q.shape[1] > 1}
    if call.q.dtype == torch.float32:
        # multiplied as such, whatever torch's setting for matrix products
        options["FLOAT32_PRECISION"] = "'ieee'"
    attend = _public if torch.compiler.is_dynamo_compiling() else flex_private.traceable
    out, lse = attend(heads, call.score_mod(), masks, call.blocks(), call.scale, options)
    if call.reads_lowest:
        lowest = torch.finfo(call.q.dtype).min
        lse = torch.where((lse > -math.inf) & (lse <= lowest / (2 * _ROOM)), lowest, lse)
    return out.transpose(1, 2).contiguous(), lse.contiguous()


def _public(
    heads: Sequence[torch.Tensor],
    score_mod: flex_private.ScoreMod,
    masks: tuple[torch.Tensor, ...],
    blocks: BlockMask,
    scale: float,
    options: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``flex_private.traceable`` returns, by torch's public function, which torch.compile understands."""

    def of_masks(*given: torch.Tensor) -> torch.Tensor:
        return score_mod(*given, *masks)

    q, k, v = heads
    out, aux = flex_attention(
        q, k, v, of_masks, blocks, scale, q.shape[1] != k.shape[1], kernel_options=options,
        return_aux=AuxRequest(lse=True),
    )  # type: ignore[call-overload]  # fmt: skip
    return out, aux.lse


class FlexAttention(InductorImplementation):
    """torch's FlexAttention with causal rows, windows, soft caps, masks and grouped heads, compiled for each size.

    Blocks of keys that no query of a block sees are left out: they are found when a plan is made, from its lengths, and
    not by a call. A mask is read with the logits, block by block; what an additive one holds below an eighth of the
    lowest number is read as the lowest.
    """

    op = "attention"
    name = "torch.flex_attention"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """CPUs, for which no log-sum-exp is compiled, float64, short heads, and no query or key."""
        yield from super().unsupported(problem, device)
        if device.type == "cpu":
            yield "on a CPU compiled FlexAttention returns no log-sum-exp"
        yield from reasons.dtype_reasons(problem, (*reasons.HALVES, "float32"))
        yield from reasons.capability_reasons(device, (8, 0) if problem.dtype == "bfloat16" else (7, 0))
        if problem.head_dim < _LEAST_WIDTH:
            yield f"head_dim={problem.head_dim} (at least {_LEAST_WIDTH})"
        if not problem.batch or not problem.q_len or not problem.kv_len:
            yield "there is no query or no key"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the op's values in the schema's order, a scale among them, and the tensors of ``seen_blocks``."""
        return by_flex_attention(FlexCall(*values))

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """One variant, whose arguments are the op's and the blocks."""
        return super().variants(problem, config, device, _with_blocks(problem, signature))

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """A file, or nothing where this version of torch keeps FlexAttention's operator elsewhere."""
        return Artifact(variant) if flex_private.missing() else super().compile(variant, target)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Make the blocks, and load the compiled code or compile it."""
        signature = _with_blocks(problem, built.signature)
        of_all = super().bind(problem, config, device, Built(signature, built.artifacts))
        with torch.inference_mode(False):
            blocks: SeenBlocks = seen_blocks(problem, built.signature.arguments.tensor("q").device)
        usual = _usual_scale(problem)

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> Any:
            q, k, v, mask, causal, scale, softcap, window = arguments
            if q.is_cuda and torch.cuda.is_current_stream_capturing():
                _KEPT[id(blocks)] = blocks
            scale = usual if scale is None else scale
            return of_all(outputs, (q, k, v, mask, causal, scale, softcap, window, *blocks), scratch)

        return run

    def bind_untuned(
        self, problem: Problem, config: Config, device: Device, signature: Signature, family: Hashable
    ) -> Run | None:
        """None: blocks are of one size, and so is the code."""
        return None


def _usual_scale(problem: Problem) -> float:
    return float(problem.head_dim**-0.5)


def _with_blocks(problem: Problem, signature: Signature) -> Signature:
    """The signature with the scale that a call without one has, and with the blocks as further arguments."""
    given = signature.arguments
    values: dict[str, Argument] = dict(given.values)
    if values["scale"] is None:
        values["scale"] = _usual_scale(problem)
    values |= zip(_NAMES, block_specs(problem, given.tensor("q").device), strict=True)
    return Signature(Arguments(given.op, values, given.gradient), signature.outputs)
