"""Writes fixtures/*.npz: small weights that the formats' own libraries packed, and what those libraries dequantise.

Run once, in an environment of its own with the libraries named below; the tests read the files only:
``WHEELS=FOLDER python tests/packed/formats/make_fixtures.py [library ...]``, with the wheel of
mslk-cuda 1.1.0 in the folder. Tensors of bfloat16 are stored as int16 under "NAME:bfloat16".
"""

from __future__ import annotations

import json
import os
import sys
import types
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent / "fixtures"
Cases = dict[str, dict[str, Any]]


def weight(n: int = 16, k: int = 192, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Rows of different magnitudes and means, so that no zero point is the middle by chance."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, k, generator=generator) * torch.rand(n, 1, generator=generator) * 0.1
    return (rows + 0.03 * torch.randn(n, 1, generator=generator)).to(dtype)


def affine(w: torch.Tensor, bits: int, g_idx: torch.Tensor, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and integer zero points [N, groups], as GPTQ and AWQ find them."""
    scales, zeros = [], []
    for group in range(int(g_idx.max()) + 1):
        part = w[:, g_idx == group].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = 2 * part.abs().amax(1) / (2**bits - 1) if symmetric else (high - low) / (2**bits - 1)
        scales.append(scale.half().float())
        zeros.append(torch.full_like(low, 2 ** (bits - 1)) if symmetric else (-low / scale).round())
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def gptqmodel() -> Cases:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    cases: Cases = {}
    for bits, group_size, act_order, symmetric in (
        (4, 64, False, False),
        (4, 64, True, False),
        (4, 128, True, True),
        (4, -1, False, False),
        (2, 32, False, False),
        (8, 64, True, False),
        (4, 512, True, False),
    ):
        k = 1100 if group_size == 512 else 200 if (bits, act_order, group_size) == (4, False, 64) else 192
        w, size = weight(24, k, seed=bits), group_size if group_size > 0 else k
        # the first rows are above zero, so that their zero points are 0
        w[:3] = w[:3].abs()
        order = torch.randperm(k, generator=torch.Generator().manual_seed(1)) if act_order else torch.arange(k)
        g_idx = torch.empty(k, dtype=torch.int32)
        g_idx[order] = (torch.arange(k) // size).to(torch.int32)
        scales, zeros = affine(w, bits, g_idx, symmetric)
        linear = torch.nn.Linear(k, 24, bias=False)
        linear.weight.data = w.clone()
        module = TorchLinear(bits, group_size, symmetric, act_order, k, 24, bias=False)
        module.pack_original(linear, scales, zeros, g_idx)
        module.post_init()
        tensors = {
            "qweight": module.qweight,
            "scales": module.scales,
            "g_idx": module.g_idx,
            "qzeros_v2": module.qzeros.clone(),
        }
        expected = module.dequantize_weight().T
        convert_gptq_v2_to_v1_format_module(module, _quantize_config(bits, group_size))
        tensors |= {"qzeros_v1": module.qzeros.clone(), "expected": expected}
        name = f"{bits} bits, group {group_size}{', act-order' * act_order}{', symmetric' * symmetric}"
        cases[name] = tensors | {"bits": bits, "group_size": group_size}
    return cases


def _quantize_config(bits: int, group_size: int) -> Any:
    return types.SimpleNamespace(bits=bits, group_size=group_size, pack_dtype=torch.int32, runtime_bits=bits)


def autoawq() -> Cases:
    sys.modules.setdefault("awq", types.ModuleType("awq")).__path__ = [
        str(Path(str(distribution("autoawq").locate_file("awq"))))
    ]
    from awq.utils.packing_utils import dequantize_gemm

    cases: Cases = {}
    for group_size in (64, 128, -1):
        k = 256
        size = group_size if group_size > 0 else k
        w = weight(32, k)
        scales, zeros = affine(w, 4, torch.arange(k) // size, False)
        # the library does not clamp: an integer of 16 would be the next one's
        scale, zero = (value.repeat_interleave(size, 1) for value in (scales, zeros))
        w = ((w / scale + zero).round().clamp(0, 15) - zero) * scale
        packed = _awq_gemm(w, scales, zeros, size)
        expected = dequantize_gemm(packed["qweight"], packed["qzeros"], packed["scales"], 4, size).T
        cases[f"group {group_size}"] = packed | {"expected": expected, "group_size": group_size}
        # of the same integers, scales and zero points, which this version packs along K
        cases[f"gemv, group {group_size}"] = _awq_gemv(w, scales, zeros, size) | {
            "expected": expected,
            "group_size": group_size,
        }
    return cases


def _awq_gemm(w: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int) -> dict[str, Any]:
    from awq.modules.linear import gemm

    gemm.get_best_device = lambda: "cpu"
    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    module = gemm.WQLinear_GEMM.from_linear(
        linear, 4, group_size, scales=scales.T.contiguous(), zeros=zeros.T.contiguous()
    )
    return {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales}


def _awq_gemv(w: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int) -> dict[str, Any]:
    from awq.modules.linear import gemv

    linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    linear.weight.data = w.clone()
    module = gemv.WQLinear_GEMV.from_linear(linear, 4, group_size, scales=scales, zeros=zeros)
    return {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales}


def compressed_tensors() -> Cases:
    from compressed_tensors.compressors import IntQuantizationCompressor, PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    cases: Cases = {}
    for kind, bits, group_size, symmetric, dtype, order in (
        ("pack", 4, 64, True, torch.bfloat16, False),
        ("pack", 4, 32, False, torch.float16, False),
        ("pack", 4, 64, False, torch.bfloat16, True),
        ("pack", 8, None, False, torch.float16, False),
        ("pack", 2, 64, False, torch.float32, False),
        ("int", 8, None, True, torch.bfloat16, False),
        ("int", 8, 64, False, torch.float32, False),
    ):
        w = weight(20, 192, dtype)
        strategy = {"strategy": "channel"} if group_size is None else {"strategy": "group", "group_size": group_size}
        args = QuantizationArgs(num_bits=bits, symmetric=symmetric, **strategy)
        g_idx = torch.arange(192) // 64
        if order:
            g_idx = g_idx[torch.randperm(192, generator=torch.Generator().manual_seed(1))]
        parts = [w[:, g_idx == group] for group in range(3)] if order else w.split(group_size or 192, 1)
        low, high = torch.stack([p.amin(1) for p in parts], 1), torch.stack([p.amax(1) for p in parts], 1)
        scale, zero = calculate_qparams(low, high, args)
        state = {"weight": w, "weight_scale": scale.to(dtype), "weight_zero_point": zero.to(torch.int8)}
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = PackedQuantizationCompressor if kind == "pack" else IntQuantizationCompressor
        sort = torch.argsort(g_idx, stable=True)
        if order:
            # the library orders columns by g_idx, quantises, and puts them back (QuantizationArgs.actorder)
            state["weight"] = w[:, sort]
        packed = compressor.compress(state, scheme)
        expected = compressor.decompress(dict(packed), scheme)["weight"]
        if order:
            whole = compressor.compress(state, scheme)
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

            q = unpack_from_int32(whole["weight_packed"], bits, w.shape)[:, torch.argsort(sort)]
            packed |= {"weight_packed": pack_to_int32(q.contiguous(), bits), "weight_g_idx": g_idx.to(torch.int32)}
            expected = expected[:, torch.argsort(sort)]
        name = f"{kind}, {bits} bits, group {group_size}{', symmetric' * symmetric}{', act-order' * order}"
        wanted = {name: value for name, value in packed.items() if isinstance(value, torch.Tensor)}
        cases[name] = wanted | {"expected": expected, "bits": bits, "group_size": group_size or -1}
    return cases


def torchao() -> Cases:
    from torchao.quantization import Int4Tensor, PerRow
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType
    from torchao.quantization.quantize_.workflows import Int8Tensor, IntxUnpackedToInt8Tensor
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    made: dict[str, tuple[Any, torch.Tensor]] = {}
    for name, granularity, mapping in (
        ("int8, a row", PerRow(), MappingType.SYMMETRIC),
        ("int8, groups of 64, asymmetric", PerGroup(64), MappingType.ASYMMETRIC),
    ):
        tensor = Int8Tensor.from_hp(weight(dtype=torch.bfloat16), granularity, mapping)
        # in float32, in which the library computes: its scales are float32
        made[name] = (tensor, tensor.dequantize(torch.float32))
    for dtype, group_size, mapping in (
        (torch.int4, 32, MappingType.ASYMMETRIC),
        (torch.int3, 64, MappingType.SYMMETRIC),
        (torch.int8, 192, MappingType.ASYMMETRIC),
    ):
        intx = IntxUnpackedToInt8Tensor.from_hp(weight(), (1, group_size), dtype, mapping_type=mapping)
        made[f"intx {dtype}".replace("torch.", "")] = (intx, intx.dequantize())
    mslk = _mslk()
    w = weight(dtype=torch.bfloat16)
    q, scale, zero = mslk.int4_row_quantize_zp(w, 64)
    tensor = Int4Tensor(mslk.pack_int4(q), scale.bfloat16(), zero.bfloat16(), [1, 64], w.shape)
    # its kernels need a GPU: what they compute is q * scale + zero_point
    wide = (
        q.double() * tensor.scale.double().T.repeat_interleave(64, 1)
    ) + tensor.zero_point.double().T.repeat_interleave(64, 1)
    made["int4"] = (tensor, wide.float())
    for dtype in (torch.bfloat16, torch.float32):
        nf4 = to_nf4(weight(32, 128, dtype), 64, 64)
        made[f"nf4 {dtype}".replace("torch.", "")] = (nf4, nf4.get_original_weight())
    cases: Cases = {}
    for name, (tensor, expected) in made.items():
        values = {key: value for key, value in vars(tensor).items() if isinstance(value, torch.Tensor)}
        plain = {key: getattr(tensor, key, None) for key in ("block_size", "scaler_block_size", "target_dtype")}
        plain |= {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "class": type(tensor).__name__}
        plain = {key: str(value) if isinstance(value, torch.dtype) else value for key, value in plain.items()}
        cases[name] = values | {"expected": expected, "plain": json.dumps(plain)}
    return cases


def _mslk() -> Any:
    """mslk's rounding for Int4Tensor, from the wheel beside: the package itself loads CUDA's libraries."""
    (wheel,) = Path(os.environ["WHEELS"]).glob("mslk_cuda-*.whl")
    source = zipfile.ZipFile(wheel).read("mslk/quantize/shuffle.py").decode()
    module = types.ModuleType("mslk_shuffle")
    # without its own imports, which load them too
    exec(
        "\n".join(line for line in source.splitlines() if not line.startswith(("from mslk", "import mslk"))),
        vars(module),
    )
    return module


def hqq() -> Cases:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    cases: Cases = {}
    for nbits, group_size, axis, quantised, as_float in (
        (4, 64, 1, False, False),
        (4, 64, 1, True, True),
        (8, 64, 1, False, False),
        (3, 64, 1, False, False),
        (2, 32, 1, False, False),
        (1, 64, 1, False, False),
        (4, 64, 0, False, False),
    ):
        config = BaseQuantizeConfig(nbits, group_size, axis=axis, view_as_float=as_float)
        linear = torch.nn.Linear(192, 16, bias=False)
        linear.weight.data = weight(16, 192)
        layer = HQQLinear(linear, config, compute_dtype=torch.float16, device="cpu")
        if quantised:
            # as older versions did by themselves, and as their checkpoints are
            zero = {"nbits": 8, "channel_wise": False, "group_size": None, "optimize": False}
            scale = {"nbits": 8, "channel_wise": True, "group_size": 16, "optimize": False}
            del layer.W_q
            layer.quantize(weight(16, 192), config["weight_quant_params"], scale, zero)
            layer.cuda("cpu")
        meta, tensors = _flat(layer.meta), {"W_q": layer.W_q.data, "expected": layer.dequantize()}
        name = f"{nbits} bits, axis {axis}{', quantised scales' * quantised}"
        plain = {key: value for key, value in meta.items() if not isinstance(value, torch.Tensor)}
        tensors |= {f"meta.{key}": value for key, value in meta.items() if isinstance(value, torch.Tensor)}
        cases[name] = tensors | {"plain": json.dumps(plain)}
    return cases


def _flat(meta: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in meta.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}.")
        else:
            kept = list(value) if isinstance(value, torch.Size) else value
            flat[before + key] = str(kept) if isinstance(kept, torch.dtype) else kept
    return flat


def bitsandbytes() -> Cases:
    from bitsandbytes.functional import (
        QuantState,
        _convert_weight_packed_for_cpu,
        dequantize_4bit,
        quantize_4bit,
    )

    cases: Cases = {}
    for nested in (False, True):
        packed, state = quantize_4bit(
            weight(32, 128), blocksize=64, quant_type="nf4", compress_statistics=nested, quant_storage=torch.uint8
        )
        case = {"packed": packed, "absmax": state.absmax, "expected": dequantize_4bit(packed, state)}
        if nested:
            inner = {"code": state.state2.code, "absmax": state.state2.absmax, "offset": state.offset}
            case |= {f"inner.{key}": value for key, value in inner.items()}
            case["inner.blocksize"] = state.state2.blocksize
        shared = {"blocksize": 64, "shape": np.array([32, 128])}
        cases["double quantisation" if nested else "plain"] = case | shared
        # what a layer's first product on a CPU with AVX-512 makes of its weight, with scales in bfloat16
        reordered, state = _convert_weight_packed_for_cpu(packed, state)
        plain = QuantState(state.absmax.T.reshape(-1).float(), state.shape, state.code, 64, "nf4", torch.float32)
        case = {"packed": reordered, "absmax": state.absmax, "expected": dequantize_4bit(packed, plain)}
        cases[f"for the CPU{', double quantisation' * nested}"] = case | shared
    return cases


LIBRARIES = {
    "gptqmodel": (gptqmodel, ("gptqmodel",)),
    "autoawq": (autoawq, ("autoawq",)),
    "compressed_tensors": (compressed_tensors, ("compressed-tensors",)),
    "torchao": (torchao, ("torchao",)),
    "hqq": (hqq, ("hqq",)),
    "bitsandbytes": (bitsandbytes, ("bitsandbytes",)),
}


def write(library: str) -> None:
    make, packages = LIBRARIES[library]
    arrays: dict[str, Any] = {"made by": ", ".join(f"{name} {version(name)}" for name in (*packages, "torch"))}
    for case, values in make().items():
        for name, value in values.items():
            key, stored = f"{case}/{name}", value
            if isinstance(value, torch.Tensor):
                tensor = value.detach().cpu().contiguous()
                half = tensor.dtype == torch.bfloat16
                key, stored = f"{key}{':bfloat16' * half}", (tensor.view(torch.int16) if half else tensor).numpy()
            arrays[key] = stored
    HERE.mkdir(exist_ok=True)
    np.savez_compressed(HERE / f"{library}.npz", **arrays)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or LIBRARIES:
        write(chosen)
