"""The text of attention's kernel by wgmma on a CPU: tiles, barriers and products as Hopper has them, one by one."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from registry.backends.cuda import nvrtc, read_source
from registry.contracts import ATTENTION
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config
from registry_cuda.attention.forward import WgmmaAttention
from registry_cuda.attention.head_tiles import HeadTiles, head_tiles

SMALL_H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 3, 141 << 30, 60 << 20)
"""Few multiprocessors, so that each goes from tile to tile."""
FORWARD = WgmmaAttention()
Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]
_PTX = {
    'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));': "found = std::exp2(x);",
    'asm volatile("bar.sync %0, 256;" ::"r"(FIRST + own) : "memory");': "cpu::named_barrier(FIRST + own, true);",
    'asm volatile("bar.arrive %0, 256;" ::"r"(FIRST + (own + 1) % WARPGROUPS) : "memory");': (
        "cpu::named_barrier(FIRST + (own + 1) % WARPGROUPS, false);"
    ),
    'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");': "",
    'asm volatile("" : "+r"(word[k])::"memory");': ";",
}
"""Instructions of the kernel's text, and what stands for them."""
_CALL = """
extern "C" const char *launch(unsigned grid, bool late, HeadMap q, HeadMap k, HeadMap v, ELEMENT *out, float *lse,
                              float scale, const long long *sizes) {{
  return cpu::run_grid(grid, THREADS, {shared_bytes}, late, attention_forward, q, k, v, out, lse, scale, sizes[0],
                       sizes[1], sizes[2], sizes[3], sizes[4]);
}}
"""


class _Map(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_longlong * 4),
        ("strides", ctypes.c_longlong * 3),
        ("height", ctypes.c_int),
    )


def kernel_text(change: Callable[[str], str] | None = None) -> str:
    """The kernel's text without PTX, changed or not."""
    text = read_source("registry_cuda.attention.kernels", "forward.cu")
    for instruction, stand_in in _PTX.items():
        assert instruction in text, instruction
        text = text.replace(instruction, stand_in)
    assert "asm" not in text
    assert change is None or change(text) != text
    operands = (
        _function(read_source("registry_cuda.kernels", "tensor_map.cuh"), "swizzled_operand"),
        _function(read_source("registry_cuda.attention.kernels", "head_tiles.cuh"), "operand_of_rows"),
    )
    return "\n".join((*operands, change(text) if change else text))


def _function(text: str, name: str) -> str:
    found = re.search(rf"^__device__ inline [\w ]+ {name}\(.*?^}}$", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[0]


def built(problem: Problem, config: Config, folder: Path, change: Callable[[str], str] | None = None) -> Attend:
    """A function of the op's values that runs the kernel, with copies and products early or late.

    It raises RuntimeError for what a GPU forbids, and for threads that wait for ever.
    """
    assert not list(FORWARD.unsupported(problem, SMALL_H200))
    assert config in FORWARD.space(problem, SMALL_H200)
    launch = FORWARD.launch(problem, config, SMALL_H200)
    assert isinstance(launch, Launch)
    text = "\n".join(
        [
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
            '#include "warpgroups_on_cpu.hpp"',
            kernel_text(change),
            _CALL.format(shared_bytes=launch.shared_bytes),
        ]
    )
    source = folder / "attention.cpp"
    source.write_text(text)
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    command = ["g++", *flags, str(source), "-o", str(source.with_suffix(".so"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    call = ctypes.CDLL(str(source.with_suffix(".so"))).launch
    call.restype = ctypes.c_char_p

    def attend(*values: Any, late: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        posed = ATTENTION.pose(ATTENTION.arguments(values))
        told = FORWARD.launch(posed, config, SMALL_H200)
        assert isinstance(told, Launch)
        named = dict(zip(ATTENTION.parsed.names, values, strict=True))
        out = torch.full(named["q"].shape, torch.nan, dtype=named["q"].dtype)
        lse = torch.full((posed.batch, posed.heads, posed.q_len), torch.nan)
        heights = {"q": config["warpgroups"] * 64, "k": config["keys"], "v": config["keys"]}
        maps = [_map(named[name], head_tiles(posed, name, height)) for name, height in heights.items()]
        scale, *sizes = told.args[50:]
        number = named["scale"] if scale == "scale" else scale
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (out, lse)]
        counts = (ctypes.c_longlong * 5)(*sizes)
        fault = call(told.grid[0], late, *maps, *pointers, ctypes.c_float(number), counts)
        if fault is not None:
            raise RuntimeError(fault.decode())
        return out, lse

    return attend


def _map(tensor: torch.Tensor, tiles: HeadTiles | None) -> _Map:
    assert tiles is not None
    strides = [stride // tensor.element_size() for stride in tiles.strides]
    return _Map(
        tensor.data_ptr(), (ctypes.c_longlong * 4)(*tiles.sizes), (ctypes.c_longlong * 3)(*strides), tiles.height
    )
