"""Gated activations and their gradients: each program does one block of columns of one row of both halves.

A row is ``[gate, up]``, COLS columns each. The columns are known when it is compiled, so that rows whose halves start
at multiples of 16 bytes are read 16 bytes at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...kernels.elementwise import _gelu, _gelu_slope
from .dependents import await_kernel_ahead


@triton.jit
def _block(COLS: tl.constexpr, BLOCK: tl.constexpr):
    """The row, the columns and whether these are the row's own."""
    pieces: tl.constexpr = (COLS + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    col = (program % pieces) * BLOCK + tl.arange(0, BLOCK)
    return (program // pieces).to(tl.int64), col, col < COLS


@triton.jit
def _activated(gate, FUNCTION: tl.constexpr):
    """silu, or gelu by erf (none) or tanh."""
    if FUNCTION == "silu":
        activated = gate / (1.0 + tl.exp(-gate))
    else:
        activated = _gelu(gate, FUNCTION == "tanh")
    return activated


@triton.jit
def _slope(gate, FUNCTION: tl.constexpr):
    """The derivative: of silu s + x s (1 - s), where s is the sigmoid and 1 - s that of -x."""
    if FUNCTION == "silu":
        power = tl.exp(-tl.abs(gate))
        less, more = power / (1.0 + power), 1.0 / (1.0 + power)
        share = tl.where(gate < 0, less, more)
        # where the exponential is 0 the gate may be infinite
        slope = share + tl.where(power == 0.0, 0.0, gate * less * more)
    else:
        slope = _gelu_slope(gate, FUNCTION == "tanh")
    return slope


@triton.jit
def gated(y, x, FUNCTION: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """y[row, col] = activation(x[row, col]) * x[row, COLS + col] in fp32, rounded once."""
    await_kernel_ahead(DEPENDENT)
    row, col, own = _block(COLS, BLOCK)
    first = x + row * (2 * COLS)
    gate = tl.load(first + col, mask=own).to(tl.float32)
    up = tl.load(first + COLS + col, mask=own).to(tl.float32)
    result = _activated(gate, FUNCTION) * up
    tl.store(y + row * COLS + col, result.to(y.dtype.element_ty), mask=own)


@triton.jit
def gated_backward(
    grad_x, grad_y, x, FUNCTION: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """grad_x = [grad_y * up * activation'(gate), grad_y * activation(gate)] in fp32, rounded once."""
    await_kernel_ahead(DEPENDENT)
    row, col, own = _block(COLS, BLOCK)
    first, place = x + row * (2 * COLS), grad_x + row * (2 * COLS)
    gradient = tl.load(grad_y + row * COLS + col, mask=own).to(tl.float32)
    gate = tl.load(first + col, mask=own).to(tl.float32)
    up = tl.load(first + COLS + col, mask=own).to(tl.float32)
    of_gate = gradient * up * _slope(gate, FUNCTION)
    of_up = gradient * _activated(gate, FUNCTION)
    tl.store(place + col, of_gate.to(grad_x.dtype.element_ty), mask=own)
    tl.store(place + COLS + col, of_up.to(grad_x.dtype.element_ty), mask=own)
