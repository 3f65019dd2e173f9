"""Triton implementations of every op in the box. Triton itself is imported when an op is first used."""

from __future__ import annotations

from collections.abc import Sequence

import registry

KERNEL_REGISTRY_API = 1


@registry.implements("vector_add")
def vector_add_implementations() -> Sequence[registry.Implementation]:
    from .elementwise import BlockVectorAdd

    return [BlockVectorAdd()]


@registry.implements("square")
def square_implementations() -> Sequence[registry.Implementation]:
    from .elementwise import BlockSquare

    return [BlockSquare()]


@registry.implements("gelu")
def gelu_implementations() -> Sequence[registry.Implementation]:
    from .elementwise import BlockGelu

    return [BlockGelu()]


@registry.implements("softmax")
def softmax_implementations() -> Sequence[registry.Implementation]:
    from .softmax import OnlineSoftmax, RowSoftmax, SplitSoftmax

    return [RowSoftmax(), OnlineSoftmax(), SplitSoftmax()]


@registry.implements("rms_norm")
def rms_norm_implementations() -> Sequence[registry.Implementation]:
    from .rms_norm import LoopedRmsNorm, RowRmsNorm

    return [RowRmsNorm(), LoopedRmsNorm()]


@registry.implements("gemm_int4")
def gemm_int4_implementations() -> Sequence[registry.Implementation]:
    from .gemm_int4 import GemmInt4
    from .gemm_int4_dequantized import DequantizedInt4
    from .gemm_int4_split import GemvInt4, SplitKInt4

    return [GemmInt4(), SplitKInt4(), GemvInt4(), DequantizedInt4()]


@registry.implements("square_backward")
def square_backward_implementations() -> Sequence[registry.Implementation]:
    from .elementwise import BlockSquareBackward

    return [BlockSquareBackward()]


@registry.implements("gelu_backward")
def gelu_backward_implementations() -> Sequence[registry.Implementation]:
    from .elementwise import BlockGeluBackward

    return [BlockGeluBackward()]


@registry.implements("softmax_backward")
def softmax_backward_implementations() -> Sequence[registry.Implementation]:
    from .softmax_backward import LoopedSoftmaxBackward, RowSoftmaxBackward

    return [RowSoftmaxBackward(), LoopedSoftmaxBackward()]


@registry.implements("rms_norm_backward")
def rms_norm_backward_implementations() -> Sequence[registry.Implementation]:
    from .rms_norm_backward import ColumnsRmsNormBackward, RowRmsNormBackward

    return [RowRmsNormBackward(), ColumnsRmsNormBackward()]


@registry.implements("linear")
def linear_implementations() -> Sequence[registry.Implementation]:
    from .linear import GemmLinear, GemvLinear, SplitKLinear

    return [GemmLinear(), SplitKLinear(), GemvLinear()]


def _packed_gemm(op: str, bits: int, nf4: bool = False) -> Sequence[registry.Implementation]:
    from .packed.gemm import DequantizedGemm, TiledGemm
    from .packed.split import Gemv, SplitKGemm

    return [form(op, bits, nf4) for form in (TiledGemm, SplitKGemm, Gemv, DequantizedGemm)]


@registry.implements("gemm_int8")
def gemm_int8_implementations() -> Sequence[registry.Implementation]:
    return _packed_gemm("gemm_int8", 8)


@registry.implements("gemm_int2")
def gemm_int2_implementations() -> Sequence[registry.Implementation]:
    return _packed_gemm("gemm_int2", 2)


@registry.implements("gemm_int1")
def gemm_int1_implementations() -> Sequence[registry.Implementation]:
    return _packed_gemm("gemm_int1", 1)


@registry.implements("gemm_w4a16")
def gemm_w4a16_implementations() -> Sequence[registry.Implementation]:
    return _packed_gemm("gemm_w4a16", 4)


@registry.implements("gemm_nf4")
def gemm_nf4_implementations() -> Sequence[registry.Implementation]:
    return _packed_gemm("gemm_nf4", 4, nf4=True)


@registry.implements("quantize_per_token")
def quantize_per_token_implementations() -> Sequence[registry.Implementation]:
    from .quantize import PieceQuantize, RowQuantize

    return [RowQuantize(), PieceQuantize()]


@registry.implements("grouped_gemm")
def grouped_gemm_implementations() -> Sequence[registry.Implementation]:
    from .grouped.gemm import TiledGroupedGemm

    return [TiledGroupedGemm()]


@registry.implements("fused_moe")
def fused_moe_implementations() -> Sequence[registry.Implementation]:
    from .grouped.moe import TiledMoe
    from .grouped.moe_gemv import GemvMoe

    return [TiledMoe(), GemvMoe()]


@registry.implements("grouped_gemm_int4")
def grouped_gemm_int4_implementations() -> Sequence[registry.Implementation]:
    from .grouped.int4 import TiledGroupedInt4
    from .grouped.int4_dequantized import DequantizedExperts
    from .grouped.int4_grouped_mm import GroupedMmExperts

    return [TiledGroupedInt4(), DequantizedExperts(), GroupedMmExperts()]


@registry.implements("grouped_scaled_mm")
def grouped_scaled_mm_implementations() -> Sequence[registry.Implementation]:
    from .grouped.scaled import TiledGroupedScaledMm

    return [TiledGroupedScaledMm()]


@registry.implements("grouped_gemm_backward")
def grouped_gemm_backward_implementations() -> Sequence[registry.Implementation]:
    from .grouped.backward import TiledGroupedGradients

    return [TiledGroupedGradients()]


@registry.implements("gemm_w4a8")
def gemm_w4a8_implementations() -> Sequence[registry.Implementation]:
    from .packed.a8 import TiledA8

    return [TiledA8("gemm_w4a8", 4)]


@registry.implements("gemm_w8a8")
def gemm_w8a8_implementations() -> Sequence[registry.Implementation]:
    from .packed.a8 import TiledA8

    return [TiledA8("gemm_w8a8", 8)]


@registry.implements("scaled_mm")
def scaled_mm_implementations() -> Sequence[registry.Implementation]:
    from .scaled_mm import GemmScaledMm, SplitKScaledMm

    return [GemmScaledMm(), SplitKScaledMm()]


@registry.implements("gemm_sparse24")
def gemm_sparse24_implementations() -> Sequence[registry.Implementation]:
    from .sparse24 import GemvSparse24, SplitKSparse24, TiledSparse24

    return [TiledSparse24(), SplitKSparse24(), GemvSparse24()]


@registry.implements("layer_norm")
def layer_norm_implementations() -> Sequence[registry.Implementation]:
    from .decoder.layer_norm import LoopedLayerNorm, RowLayerNorm

    return [RowLayerNorm(), LoopedLayerNorm()]


@registry.implements("layer_norm_backward")
def layer_norm_backward_implementations() -> Sequence[registry.Implementation]:
    from .decoder.layer_norm_backward import ColumnsLayerNormBackward, RowLayerNormBackward

    return [RowLayerNormBackward(), ColumnsLayerNormBackward()]


@registry.implements("silu_and_mul")
def silu_and_mul_implementations() -> Sequence[registry.Implementation]:
    from .decoder.gated import BlockGated

    return [BlockGated("silu_and_mul")]


@registry.implements("silu_and_mul_backward")
def silu_and_mul_backward_implementations() -> Sequence[registry.Implementation]:
    from .decoder.gated import BlockGatedBackward

    return [BlockGatedBackward("silu_and_mul_backward")]


@registry.implements("gelu_and_mul")
def gelu_and_mul_implementations() -> Sequence[registry.Implementation]:
    from .decoder.gated import BlockGated

    return [BlockGated("gelu_and_mul")]


@registry.implements("gelu_and_mul_backward")
def gelu_and_mul_backward_implementations() -> Sequence[registry.Implementation]:
    from .decoder.gated import BlockGatedBackward

    return [BlockGatedBackward("gelu_and_mul_backward")]


@registry.implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Sequence[registry.Implementation]:
    from .decoder.fused_add_rms_norm import LoopedFusedAddRmsNorm, RowFusedAddRmsNorm

    return [RowFusedAddRmsNorm(), LoopedFusedAddRmsNorm()]


@registry.implements("rotary_embedding")
def rotary_embedding_implementations() -> Sequence[registry.Implementation]:
    from .decoder.rotary_embedding import BlockRotaryEmbedding

    return [BlockRotaryEmbedding()]


@registry.implements("apply_rotary")
def apply_rotary_implementations() -> Sequence[registry.Implementation]:
    from .decoder.apply_rotary import BlockApplyRotary

    return [BlockApplyRotary()]


@registry.implements("apply_rotary_backward")
def apply_rotary_backward_implementations() -> Sequence[registry.Implementation]:
    from .decoder.apply_rotary import BlockApplyRotaryBackward

    return [BlockApplyRotaryBackward()]


@registry.implements("kv_cache_append")
def kv_cache_append_implementations() -> Sequence[registry.Implementation]:
    from .decoder.kv_cache_append import BlockKvCacheAppend
    from .decoder.kv_cache_append_int8 import BlockInt8Append

    return [BlockKvCacheAppend(), BlockInt8Append()]


@registry.implements("rotary_kv_append")
def rotary_kv_append_implementations() -> Sequence[registry.Implementation]:
    from .decoder.rotary_kv_append import BlockRotaryKvAppend

    return [BlockRotaryKvAppend()]


@registry.implements("attention_decode")
def attention_decode_implementations() -> Sequence[registry.Implementation]:
    from .attention.decode import SplitKvDecode, WholeDecode
    from .attention.decode_int8 import SplitInt8Decode, WholeInt8Decode

    return [WholeDecode(), SplitKvDecode(), WholeInt8Decode(), SplitInt8Decode()]


@registry.implements("mla_decode")
def mla_decode_implementations() -> Sequence[registry.Implementation]:
    from .attention.mla_decode import SplitMlaDecode, WholeMlaDecode

    return [WholeMlaDecode(), SplitMlaDecode()]


@registry.implements("top_k_top_p_sampling")
def top_k_top_p_sampling_implementations() -> Sequence[registry.Implementation]:
    from .sampling.top_k_top_p import LoopedTopKTopPSampling, SplitTopKTopPSampling

    return [LoopedTopKTopPSampling(), SplitTopKTopPSampling()]


@registry.implements("embedding")
def embedding_implementations() -> Sequence[registry.Implementation]:
    from .decoder.embedding import BlockEmbedding

    return [BlockEmbedding()]


@registry.implements("embedding_backward")
def embedding_backward_implementations() -> Sequence[registry.Implementation]:
    from .decoder.embedding import EntriesEmbeddingBackward
    from .decoder.embedding_sorted import SortedEmbeddingBackward

    return [SortedEmbeddingBackward(), EntriesEmbeddingBackward()]


@registry.implements("topk_softmax")
def topk_softmax_implementations() -> Sequence[registry.Implementation]:
    from .grouped.topk_softmax import RowTopkSoftmax

    return [RowTopkSoftmax()]


@registry.implements("topk_softmax_backward")
def topk_softmax_backward_implementations() -> Sequence[registry.Implementation]:
    from .grouped.topk_softmax import RowTopkSoftmaxBackward

    return [RowTopkSoftmaxBackward()]


@registry.implements("cross_entropy")
def cross_entropy_implementations() -> Sequence[registry.Implementation]:
    from .losses.cross_entropy import OnlineCrossEntropy, RowCrossEntropy, SplitCrossEntropy
    from .losses.ragged_cross_entropy import RaggedCrossEntropy

    return [RowCrossEntropy(), OnlineCrossEntropy(), SplitCrossEntropy(), RaggedCrossEntropy()]


@registry.implements("cross_entropy_backward")
def cross_entropy_backward_implementations() -> Sequence[registry.Implementation]:
    from .losses.cross_entropy_backward import TileCrossEntropyBackward
    from .losses.ragged_cross_entropy_backward import RaggedCrossEntropyBackward

    return [TileCrossEntropyBackward(), RaggedCrossEntropyBackward()]


@registry.implements("fused_linear_cross_entropy")
def fused_linear_cross_entropy_implementations() -> Sequence[registry.Implementation]:
    from .losses.linear_cross_entropy import ChunkedLinearLoss

    return [ChunkedLinearLoss()]


@registry.implements("fused_linear_cross_entropy_backward")
def fused_linear_cross_entropy_backward_implementations() -> Sequence[registry.Implementation]:
    from .losses.linear_cross_entropy_backward import ChunkedLinearLossBackward

    return [ChunkedLinearLossBackward()]


@registry.implements("fused_linear_cross_entropy_gradients")
def fused_linear_cross_entropy_gradients_implementations() -> Sequence[registry.Implementation]:
    from .losses.linear_gradients import ChunkedLinearLossGradients

    return [ChunkedLinearLossGradients()]


@registry.implements("attention")
def attention_implementations() -> Sequence[registry.Implementation]:
    from .attention.flash import TileAttention

    return [TileAttention()]


@registry.implements("attention_backward")
def attention_backward_implementations() -> Sequence[registry.Implementation]:
    from .attention.flash_backward import TileAttentionBackward

    return [TileAttentionBackward()]


@registry.implements("attention_varlen")
def attention_varlen_implementations() -> Sequence[registry.Implementation]:
    from .attention.varlen import PackedAttention

    return [PackedAttention()]


@registry.implements("attention_varlen_backward")
def attention_varlen_backward_implementations() -> Sequence[registry.Implementation]:
    from .attention.varlen_backward import PackedAttentionBackward

    return [PackedAttentionBackward()]
