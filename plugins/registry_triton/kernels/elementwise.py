"""Elementwise kernels: each program does one block of consecutive elements.

All blocks but the last load and store without a mask. With one, the number of elements would have to be known as a
multiple of 16 for 16-byte accesses, and every other length would run element by element.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def vector_add(out, x, y, n, BLOCK: tl.constexpr):
    """out = x + y in fp32, rounded once."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    item = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        total = tl.load(x + start + item).to(tl.float32) + tl.load(y + start + item).to(tl.float32)
        tl.store(out + start + item, total.to(out.dtype.element_ty))
    else:
        mask = start + item < n
        total = tl.load(x + start + item, mask=mask).to(tl.float32) + tl.load(y + start + item, mask=mask).to(
            tl.float32
        )
        tl.store(out + start + item, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n"])
def square(y, x, n, BLOCK: tl.constexpr):
    """y = x * x in fp32, rounded once."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    item = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        value = tl.load(x + start + item).to(tl.float32)
        tl.store(y + start + item, (value * value).to(y.dtype.element_ty))
    else:
        mask = start + item < n
        value = tl.load(x + start + item, mask=mask).to(tl.float32)
        tl.store(y + start + item, (value * value).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _gelu(x, TANH: tl.constexpr):
    if TANH:
        # 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), which keeps its relative precision where tanh(u) nears -1
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x / (1.0 + tl.exp(-2.0 * u))
    else:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit(do_not_specialize=["n"])
def gelu(y, x, n, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """y = gelu(x) in fp32, rounded once; TANH: the tanh approximation, else by erf (Hendrycks & Gimpel 2016)."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    item = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        value = tl.load(x + start + item).to(tl.float32)
        tl.store(y + start + item, _gelu(value, TANH).to(y.dtype.element_ty))
    else:
        mask = start + item < n
        value = tl.load(x + start + item, mask=mask).to(tl.float32)
        tl.store(y + start + item, _gelu(value, TANH).to(y.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_slope(x, TANH: tl.constexpr):
    """The derivative of gelu: a probability, and x times its density."""
    if TANH:
        # by exp(-|2u|), which cannot overflow: probability 1 / (1 + exp(-2u)), density its derivative by x
        twice_u = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        power = tl.exp(-tl.abs(twice_u))
        part = 1.0 / (1.0 + power)
        probability = tl.where(twice_u < 0, power * part, part)
        density = power * part * part * (1.5957691216057308 * (1.0 + 0.134145 * x * x))
    else:
        power = tl.exp(-0.5 * x * x)
        probability = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        density = power * 0.3989422804014327
    # where the exponential is 0, x or its square may be infinite
    return probability + tl.where(power == 0.0, 0.0, x * density)


@triton.jit(do_not_specialize=["n"])
def gelu_backward(grad_x, grad_y, x, n, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """grad_x = grad_y * gelu'(x) in fp32, rounded once."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    item = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        slope = _gelu_slope(tl.load(x + start + item).to(tl.float32), TANH)
        result = tl.load(grad_y + start + item).to(tl.float32) * slope
        tl.store(grad_x + start + item, result.to(grad_x.dtype.element_ty))
    else:
        mask = start + item < n
        slope = _gelu_slope(tl.load(x + start + item, mask=mask).to(tl.float32), TANH)
        result = tl.load(grad_y + start + item, mask=mask).to(tl.float32) * slope
        tl.store(grad_x + start + item, result.to(grad_x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n"])
def square_backward(grad_x, grad_y, x, n, BLOCK: tl.constexpr):
    """grad_x = 2 * x * grad_y in fp32, rounded once; the product first, as 2 * x may overflow."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    item = tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        product = tl.load(grad_y + start + item).to(tl.float32) * tl.load(x + start + item).to(tl.float32)
        tl.store(grad_x + start + item, (product * 2.0).to(grad_x.dtype.element_ty))
    else:
        mask = start + item < n
        product = tl.load(grad_y + start + item, mask=mask).to(tl.float32) * tl.load(x + start + item, mask=mask).to(
            tl.float32
        )
        tl.store(grad_x + start + item, (product * 2.0).to(grad_x.dtype.element_ty), mask=mask)
