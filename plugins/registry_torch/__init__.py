"""torch's own operators, and torch.compile. Found like any third party's plugin: through its entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from registry import implements

if TYPE_CHECKING:
    from registry.implementation import Implementation

KERNEL_REGISTRY_API = 1


@implements("vector_add")
def vector_add_implementations() -> Iterable[Implementation]:
    """``torch.add``, and Inductor's."""
    from .compiled import CompiledVectorAdd
    from .native import VectorAdd

    return [VectorAdd(), CompiledVectorAdd()]


@implements("square")
def square_implementations() -> Iterable[Implementation]:
    """``torch.mul`` of a tensor with itself, and Inductor's."""
    from .compiled import CompiledSquare
    from .native import Square

    return [Square(), CompiledSquare()]


@implements("gelu")
def gelu_implementations() -> Iterable[Implementation]:
    """``torch.nn.functional.gelu``, and Inductor's."""
    from .compiled import CompiledGelu
    from .native import Gelu

    return [Gelu(), CompiledGelu()]


@implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """``torch.softmax``, and Inductor's."""
    from .compiled import CompiledSoftmax
    from .rows.softmax import SoftmaxRoundedOnce

    return [SoftmaxRoundedOnce(), CompiledSoftmax()]


@implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """``torch.nn.functional.rms_norm``, and Inductor's."""
    from .compiled import CompiledRmsNorm
    from .native import RmsNorm

    return [RmsNorm(), CompiledRmsNorm()]


@implements("gemm_int4")
def gemm_int4_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor, and torch's kernels for packed weights."""
    from .compiled import CompiledGemmInt4
    from .native import DequantizeGemm
    from .tinygemm import CpuTinygemm, CudaTinygemm

    return [DequantizeGemm(), CompiledGemmInt4(), CudaTinygemm(), CpuTinygemm()]


@implements("square_backward")
def square_backward_implementations() -> Iterable[Implementation]:
    """Two products, and Inductor's one pass."""
    from .backward import SquareBackward
    from .compiled_backward import CompiledSquareBackward

    return [SquareBackward(), CompiledSquareBackward()]


@implements("gelu_backward")
def gelu_backward_implementations() -> Iterable[Implementation]:
    """torch's own gradient, as its autograd runs it, and the gradient that Inductor compiles."""
    from .backward import GeluBackward
    from .compiled_backward import CompiledGeluBackward

    return [GeluBackward(), CompiledGeluBackward()]


@implements("softmax_backward")
def softmax_backward_implementations() -> Iterable[Implementation]:
    """torch's own gradient, as its autograd runs it, and the gradient that Inductor compiles."""
    from .backward import SoftmaxBackward
    from .compiled_backward import CompiledSoftmaxBackward

    return [SoftmaxBackward(), CompiledSoftmaxBackward()]


@implements("rms_norm_backward")
def rms_norm_backward_implementations() -> Iterable[Implementation]:
    """torch's fused kernels where it has them, else the formula, and Inductor's."""
    from .backward import RmsNormBackward
    from .compiled_backward import CompiledRmsNormBackward

    return [RmsNormBackward(), CompiledRmsNormBackward()]


@implements("linear")
def linear_implementations() -> Iterable[Implementation]:
    """``torch.nn.functional.linear``, and Inductor's."""
    from .linear import CompiledLinear, Linear

    return [Linear(), CompiledLinear()]


@implements("linear_backward")
def linear_backward_implementations() -> Iterable[Implementation]:
    """Two matrix products and a sum, and Inductor's."""
    from .linear import CompiledLinearBackward, LinearBackward

    return [LinearBackward(), CompiledLinearBackward()]


def _packed_gemm(op: str) -> Iterable[Implementation]:
    from .packed_gemm import CompiledProduct, DequantizedProduct

    return [DequantizedProduct(op), CompiledProduct(op)]


def _packed_gemm_backward(op: str) -> Iterable[Implementation]:
    from .packed_gemm import CompiledGradients, DequantizedGradients

    return [DequantizedGradients(op), CompiledGradients(op)]


@implements("gemm_int8")
def gemm_int8_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor, and torch's kernel for whole columns."""
    from .int8pack import CpuInt8Pack

    return [*_packed_gemm("gemm_int8"), CpuInt8Pack()]


@implements("gemm_int2")
def gemm_int2_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor."""
    return _packed_gemm("gemm_int2")


@implements("gemm_int1")
def gemm_int1_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor."""
    return _packed_gemm("gemm_int1")


@implements("gemm_w4a16")
def gemm_w4a16_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor."""
    return _packed_gemm("gemm_w4a16")


@implements("gemm_nf4")
def gemm_nf4_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor."""
    return _packed_gemm("gemm_nf4")


@implements("gemm_int4_backward")
def gemm_int4_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    from .int4_backward import CompiledInt4Gradient, DequantizedInt4Gradient

    return [DequantizedInt4Gradient(), CompiledInt4Gradient()]


@implements("gemm_int8_backward")
def gemm_int8_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    return _packed_gemm_backward("gemm_int8_backward")


@implements("gemm_int2_backward")
def gemm_int2_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    return _packed_gemm_backward("gemm_int2_backward")


@implements("gemm_int1_backward")
def gemm_int1_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    return _packed_gemm_backward("gemm_int1_backward")


@implements("gemm_w4a16_backward")
def gemm_w4a16_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    return _packed_gemm_backward("gemm_w4a16_backward")


@implements("gemm_nf4_backward")
def gemm_nf4_backward_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply by the transposed weight, plain and compiled by Inductor."""
    return _packed_gemm_backward("gemm_nf4_backward")


@implements("quantize_per_token")
def quantize_per_token_implementations() -> Iterable[Implementation]:
    """The formula in plain torch, and compiled by Inductor."""
    from .quantize import CompiledQuantize, Quantize

    return [Quantize(), CompiledQuantize()]


@implements("grouped_gemm")
def grouped_gemm_implementations() -> Iterable[Implementation]:
    """A product for each expert, torch's grouped product, and Inductor's around it."""
    from .grouped.dense import CompiledGroupedGemm, GroupedGemm, GroupedMm

    return [GroupedGemm(), GroupedMm(), CompiledGroupedGemm()]


@implements("fused_moe")
def fused_moe_implementations() -> Iterable[Implementation]:
    """The MLP of one expert after the other, and by torch's grouped product, compiled too."""
    from .grouped.fused_moe import CompiledMoe, ExpertByExpert, GroupedMmMoe

    return [ExpertByExpert(), GroupedMmMoe(), CompiledMoe()]


@implements("grouped_gemm_int4")
def grouped_gemm_int4_implementations() -> Iterable[Implementation]:
    """Unpack and multiply for each expert."""
    from .grouped.int4 import DequantizedGroupedGemm

    return [DequantizedGroupedGemm()]


@implements("grouped_gemm_int4_backward")
def grouped_gemm_int4_backward_implementations() -> Iterable[Implementation]:
    """Unpack and multiply by the transposed weight for each expert."""
    from .grouped.int4 import DequantizedGroupedGradient

    return [DequantizedGroupedGradient()]


@implements("grouped_scaled_mm")
def grouped_scaled_mm_implementations() -> Iterable[Implementation]:
    """A product for each expert, of dequantised operands or by torch's float8 operator, and its grouped product."""
    from .grouped.scaled import DequantizedGroupedScaledMm, ScaledGroupedMm, ScaledMmOfExperts

    return [DequantizedGroupedScaledMm(), ScaledMmOfExperts(), ScaledGroupedMm()]


@implements("grouped_gemm_backward")
def grouped_gemm_backward_implementations() -> Iterable[Implementation]:
    """Products for each expert, torch's grouped products, and Inductor's around them."""
    from .grouped.backward import CompiledGroupedGemmBackward, GroupedGemmBackward, GroupedMmBackward

    return [GroupedGemmBackward(), GroupedMmBackward(), CompiledGroupedGemmBackward()]


def _packed_a8(op: str) -> Iterable[Implementation]:
    from .packed_a8 import CompiledA8Product, DequantizedA8Product

    return [DequantizedA8Product(op), CompiledA8Product(op)]


@implements("gemm_w4a8")
def gemm_w4a8_implementations() -> Iterable[Implementation]:
    """Dequantise both operands and multiply, plain and compiled by Inductor."""
    return _packed_a8("gemm_w4a8")


@implements("gemm_w8a8")
def gemm_w8a8_implementations() -> Iterable[Implementation]:
    """Dequantise both operands and multiply, plain and compiled by Inductor."""
    return _packed_a8("gemm_w8a8")


@implements("scaled_mm")
def scaled_mm_implementations() -> Iterable[Implementation]:
    """Dequantise and multiply, plain and compiled by Inductor, and torch's own operators for float8 and int8."""
    from .scaled_mm import CompiledScaledMm, DequantizedScaledMm, IntMm, ScaledMm

    return [DequantizedScaledMm(), CompiledScaledMm(), ScaledMm(), IntMm()]


@implements("gemm_sparse24")
def gemm_sparse24_implementations() -> Iterable[Implementation]:
    """The dense weight and the library's product, plain and compiled by Inductor; and sparse tensor cores."""
    from .cusparselt import CuSparseLt
    from .sparse24 import CompiledSparse24, DenseSparse24

    return [DenseSparse24(), CompiledSparse24(), CuSparseLt()]


@implements("gemm_sparse24_backward")
def gemm_sparse24_backward_implementations() -> Iterable[Implementation]:
    """The dense weight and the library's product, plain and compiled by Inductor."""
    from .sparse24 import CompiledSparse24Backward, DenseSparse24Backward

    return [DenseSparse24Backward(), CompiledSparse24Backward()]


@implements("silu_and_mul")
def silu_and_mul_implementations() -> Iterable[Implementation]:
    """``silu(gate) * up``, and Inductor's one pass."""
    from .gated import CompiledGated, Gated

    return [Gated("silu_and_mul"), CompiledGated("silu_and_mul")]


@implements("gelu_and_mul")
def gelu_and_mul_implementations() -> Iterable[Implementation]:
    """``gelu(gate) * up``, and Inductor's one pass."""
    from .gated import CompiledGated, Gated

    return [Gated("gelu_and_mul"), CompiledGated("gelu_and_mul")]


@implements("silu_and_mul_backward")
def silu_and_mul_backward_implementations() -> Iterable[Implementation]:
    """torch's own gradient of silu and two products, and Inductor's one pass."""
    from .gated import CompiledGatedBackward, GatedBackward

    return [GatedBackward("silu_and_mul_backward"), CompiledGatedBackward("silu_and_mul_backward")]


@implements("gelu_and_mul_backward")
def gelu_and_mul_backward_implementations() -> Iterable[Implementation]:
    """torch's own gradient of gelu and two products, and Inductor's one pass."""
    from .gated import CompiledGatedBackward, GatedBackward

    return [GatedBackward("gelu_and_mul_backward"), CompiledGatedBackward("gelu_and_mul_backward")]


@implements("layer_norm")
def layer_norm_implementations() -> Iterable[Implementation]:
    """``torch.nn.functional.layer_norm``, and Inductor's."""
    from .decoder.layer_norm import CompiledLayerNorm, LayerNorm

    return [LayerNorm(), CompiledLayerNorm()]


@implements("layer_norm_backward")
def layer_norm_backward_implementations() -> Iterable[Implementation]:
    """``aten.native_layer_norm_backward``, and Inductor's."""
    from .decoder.layer_norm import CompiledLayerNormBackward, LayerNormBackward

    return [LayerNormBackward(), CompiledLayerNormBackward()]


@implements("fused_add_rms_norm")
def fused_add_rms_norm_implementations() -> Iterable[Implementation]:
    """A sum and torch's norm in place."""
    from .decoder.fused_add_rms_norm import FusedAddRmsNorm

    return [FusedAddRmsNorm()]


@implements("rotary_embedding")
def rotary_embedding_implementations() -> Iterable[Implementation]:
    """Products and sums in place, and Inductor's."""
    from .decoder.rotary_embedding import CompiledRotaryEmbedding, RotaryEmbedding

    return [RotaryEmbedding(), CompiledRotaryEmbedding()]


@implements("apply_rotary")
def apply_rotary_implementations() -> Iterable[Implementation]:
    """Products and sums into new tensors, and Inductor's."""
    from .decoder.apply_rotary import ApplyRotary, CompiledApplyRotary

    return [ApplyRotary(), CompiledApplyRotary()]


@implements("apply_rotary_backward")
def apply_rotary_backward_implementations() -> Iterable[Implementation]:
    """Products and sums into new tensors, and Inductor's."""
    from .decoder.apply_rotary import ApplyRotaryBackward, CompiledApplyRotaryBackward

    return [ApplyRotaryBackward(), CompiledApplyRotaryBackward()]


@implements("kv_cache_append")
def kv_cache_append_implementations() -> Iterable[Implementation]:
    """Indexed copies."""
    from .decoder.kv_cache_append import KvCacheAppend

    return [KvCacheAppend()]


@implements("rotary_kv_append")
def rotary_kv_append_implementations() -> Iterable[Implementation]:
    """Products, sums and indexed copies, and Inductor's."""
    from .decoder.rotary_kv_append import CompiledRotaryKvAppend, RotaryKvAppend

    return [RotaryKvAppend(), CompiledRotaryKvAppend()]


@implements("attention_decode")
def attention_decode_implementations() -> Iterable[Implementation]:
    """Two products in float32, and Inductor's."""
    from .attention.decode import AttentionDecode, CompiledAttentionDecode

    return [AttentionDecode(), CompiledAttentionDecode()]


@implements("mla_decode")
def mla_decode_implementations() -> Iterable[Implementation]:
    """Two products, and Inductor's."""
    from .attention.mla_decode import CompiledMlaDecode, MlaDecode

    return [MlaDecode(), CompiledMlaDecode()]


@implements("top_k_top_p_sampling")
def top_k_top_p_sampling_implementations() -> Iterable[Implementation]:
    """A sort and running sums, and Inductor's."""
    from .sampling.top_k_top_p import CompiledTopKTopPSampling, TopKTopPSampling

    return [TopKTopPSampling(), CompiledTopKTopPSampling()]


@implements("embedding")
def embedding_implementations() -> Iterable[Implementation]:
    """``torch.index_select``, and Inductor's."""
    from .decoder.embedding import CompiledEmbedding, Embedding

    return [Embedding(), CompiledEmbedding()]


@implements("embedding_backward")
def embedding_backward_implementations() -> Iterable[Implementation]:
    """``index_add_`` in float32, torch's own gradient of an embedding, and Inductor's."""
    from .decoder.embedding import CompiledEmbeddingBackward, EmbeddingBackward
    from .decoder.embedding_dense import DenseEmbeddingBackward

    return [EmbeddingBackward(), DenseEmbeddingBackward(), CompiledEmbeddingBackward()]


@implements("topk_softmax")
def topk_softmax_implementations() -> Iterable[Implementation]:
    """``torch.topk``, and Inductor's."""
    from .grouped.topk_softmax import CompiledTopkSoftmax, TopkSoftmax

    return [TopkSoftmax(), CompiledTopkSoftmax()]


@implements("topk_softmax_backward")
def topk_softmax_backward_implementations() -> Iterable[Implementation]:
    """torch's operators, and Inductor's one pass."""
    from .grouped.topk_softmax import CompiledTopkSoftmaxBackward, TopkSoftmaxBackward

    return [TopkSoftmaxBackward(), CompiledTopkSoftmaxBackward()]


@implements("cross_entropy")
def cross_entropy_implementations() -> Iterable[Implementation]:
    """``torch.log_softmax`` and a lookup, and Inductor's."""
    from .losses.cross_entropy import CompiledCrossEntropy, CrossEntropy

    return [CrossEntropy(), CompiledCrossEntropy()]


@implements("cross_entropy_backward")
def cross_entropy_backward_implementations() -> Iterable[Implementation]:
    """torch's operators in place, and Inductor's one pass."""
    from .losses.cross_entropy_backward import CompiledCrossEntropyBackward, CrossEntropyBackward

    return [CrossEntropyBackward(), CompiledCrossEntropyBackward()]


@implements("fused_linear_cross_entropy")
def fused_linear_cross_entropy_implementations() -> Iterable[Implementation]:
    """A product and a loss of all logits, plain and compiled by Inductor, and of some rows at a time."""
    from .losses.chunked_linear import ChunkedLinearCrossEntropy
    from .losses.linear_cross_entropy import CompiledLinearCrossEntropy, LinearCrossEntropy

    return [LinearCrossEntropy(), CompiledLinearCrossEntropy(), ChunkedLinearCrossEntropy()]


@implements("fused_linear_cross_entropy_backward")
def fused_linear_cross_entropy_backward_implementations() -> Iterable[Implementation]:
    """All logits again, their gradient and two products, plain and compiled, and for some columns at a time."""
    from .losses.chunked_linear import ChunkedLinearCrossEntropyBackward
    from .losses.linear_cross_entropy import CompiledLinearCrossEntropyBackward, LinearCrossEntropyBackward

    return [
        LinearCrossEntropyBackward(),
        CompiledLinearCrossEntropyBackward(),
        ChunkedLinearCrossEntropyBackward(),
    ]


@implements("fused_linear_cross_entropy_gradients")
def fused_linear_cross_entropy_gradients_implementations() -> Iterable[Implementation]:
    """The loss of all logits, their gradient and two products, plain and compiled, and for some rows at a time."""
    from .losses.linear_gradients import (
        ChunkedLinearCrossEntropyGradients,
        CompiledLinearCrossEntropyGradients,
        LinearCrossEntropyGradients,
    )

    return [
        LinearCrossEntropyGradients(),
        CompiledLinearCrossEntropyGradients(),
        ChunkedLinearCrossEntropyGradients(),
    ]


@implements("attention")
def attention_implementations() -> Iterable[Implementation]:
    """Products and a softmax, plain and compiled, FlexAttention, and each of the kernels behind torch's SDPA."""
    from .attention.compiled import CompiledAttention
    from .attention.flash_cpu import CpuFlashAttention
    from .attention.flex import FlexAttention
    from .attention.masked_cudnn import MaskedCudnnAttention
    from .attention.native import NativeAttention
    from .attention.sdpa import CudnnAttention, EfficientAttention, FlashAttention

    return [
        NativeAttention(),
        CompiledAttention(),
        FlexAttention(),
        FlashAttention(),
        CudnnAttention(),
        MaskedCudnnAttention(),
        EfficientAttention(),
        CpuFlashAttention(),
    ]


@implements("attention_varlen")
def attention_varlen_implementations() -> Iterable[Implementation]:
    """Products and a softmax, sequence by sequence, and FlashAttention 2 of all sequences at once."""
    from .attention.flash_varlen import FlashVarlen, SizedFlashVarlen
    from .attention.varlen import NativeVarlen

    return [NativeVarlen(), FlashVarlen(), SizedFlashVarlen()]


@implements("attention_varlen_backward")
def attention_varlen_backward_implementations() -> Iterable[Implementation]:
    """Five products, sequence by sequence."""
    from .attention.varlen import NativeVarlenBackward

    return [NativeVarlenBackward()]


@implements("attention_backward")
def attention_backward_implementations() -> Iterable[Implementation]:
    """Five products, and the gradient of each of the kernels behind torch's attention."""
    from .attention.masked_cudnn import MaskedCudnnAttentionBackward
    from .attention.native import NativeAttentionBackward
    from .attention.sdpa_backward import (
        CpuFlashAttentionBackward,
        CudnnAttentionBackward,
        EfficientAttentionBackward,
        FlashAttentionBackward,
    )

    return [
        NativeAttentionBackward(),
        FlashAttentionBackward(),
        CudnnAttentionBackward(),
        MaskedCudnnAttentionBackward(),
        EfficientAttentionBackward(),
        CpuFlashAttentionBackward(),
    ]
