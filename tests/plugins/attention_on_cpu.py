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
from registry.problem import Problem
from registry.space import Config
from registry_cuda.attention.head_tiles import HeadTiles
from registry_cuda.attention.wgmma import WgmmaForward

from .wgmma_attention import CONTRACTS, SMALL_H200, implementation_of

Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]
_PTX = {
    'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));': "found = std::exp2(x);",
    'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));': "found = 1 / x;",
    'asm volatile("bar.sync %0, 256;" ::"r"(FIRST + own) : "memory");': "cpu::named_barrier(FIRST + own, 256, true);",
    'asm volatile("bar.arrive %0, 256;" ::"r"(FIRST + (own + 1) % WARPGROUPS) : "memory");': (
        "cpu::named_barrier(FIRST + (own + 1) % WARPGROUPS, 256, false);"
    ),
    'asm volatile("bar.sync %0, 128;" ::"r"(FIRST + WARPGROUPS + own) : "memory");': (
        "cpu::named_barrier(FIRST + WARPGROUPS + own, 128, true);"
    ),
    'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");': "",
    'asm volatile("" : "+r"(word[k])::"memory");': ";",
}
"""Instructions of the kernel's text, and what stands for them."""
_BESIDE = 4096
"""Elements before and behind each output, which a kernel leaves as they are."""
_BEFORE, _BEHIND = slice(_BESIDE), slice(-_BESIDE, None)
_CALLS = {
    "attention": """
extern "C" const char *launch(unsigned grid, bool late, HeadMap q, HeadMap k, HeadMap v, ELEMENT *out, float *lse,
                              float scale, float softcap, const long long *sizes) {{
  return cpu::run_grid(grid, THREADS, {shared_bytes}, late, attention_forward, q, k, v, out, lse, scale, softcap,
                       sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]);
}}
""",
    "attention_varlen": """
extern "C" const char *launch(unsigned grid, bool late, HeadMap q, HeadMap k, HeadMap v, ELEMENT *out, float *lse,
                              const int *q_begins, const int *k_begins, float scale, float softcap,
                              const long long *sizes) {{
  return cpu::run_grid(grid, THREADS, {shared_bytes}, late, attention_varlen_forward, q, k, v, out, lse, q_begins,
                       k_begins, scale, softcap, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]);
}}
""",
}


class _Map(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_longlong * 4),
        ("strides", ctypes.c_longlong * 3),
        ("height", ctypes.c_int),
    )


def kernel_text(implementation: WgmmaForward, change: Callable[[str], str] | None = None) -> str:
    """The kernel's text without PTX, changed or not, behind what the emulation has in place of other files."""
    _, begin, text = implementation.source.partition('#line 1 "sequence.cuh"')
    for instruction, stand_in in _PTX.items():
        assert instruction in text, instruction
        text = text.replace(instruction, stand_in)
    assert begin
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

    It raises RuntimeError for what a GPU forbids, for threads that wait for ever, and for writes beside the outputs.
    """
    contract, implementation = CONTRACTS[problem.op], implementation_of(problem)
    assert not list(implementation.unsupported(problem, SMALL_H200))
    assert config in implementation.space(problem, SMALL_H200)
    launch = implementation.launch(problem, config, SMALL_H200)
    text = "\n".join(
        [
            *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
            '#include "warpgroups_on_cpu.hpp"',
            kernel_text(implementation, change),
            _CALLS[problem.op].format(shared_bytes=launch.shared_bytes),
        ]
    )
    call = ctypes.CDLL(str(_library(text, folder))).launch
    call.restype = ctypes.c_char_p

    def attend(*values: Any, late: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        arguments = contract.arguments(values)
        posed, named = contract.pose(arguments), dict(zip(contract.parsed.names, values, strict=True))
        told = implementation.launch(posed, config, SMALL_H200)
        outputs = contract.output_specs(arguments, torch.device("cpu")).values()
        rooms = [torch.full((spec.numel + 2 * _BESIDE,), torch.nan, dtype=spec.dtype) for spec in outputs]
        out, lse = (room[_BESIDE:-_BESIDE].view(spec.shape) for room, spec in zip(rooms, outputs, strict=True))
        heights = {"q": config["warpgroups"] * 64, "k": config["keys"], "v": config["keys"]}
        maps = [_map(named[name], implementation.tiles(posed, name, height)) for name, height in heights.items()]
        sizes = told.args[50:]
        *others, scale, softcap = [named[each] if isinstance(each, str) else each for each in sizes[:-5]]
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (out, lse, *others)]
        counts = (ctypes.c_longlong * 5)(*sizes[-5:])
        fault = call(told.grid[0], late, *maps, *pointers, ctypes.c_float(scale), ctypes.c_float(softcap), counts)
        if fault is not None:
            raise RuntimeError(fault.decode())
        if not all(room[span].isnan().all() for room in rooms for span in (_BEFORE, _BEHIND)):
            raise RuntimeError("numbers outside of an output")
        return out, lse

    return attend


def _library(text: str, folder: Path) -> Path:
    source = folder / "attention.cpp"
    source.write_text(text)
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent / 'cuda_on_cpu'}"]
    command = ["g++", *flags, str(source), "-o", str(source.with_suffix(".so"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return source.with_suffix(".so")


def _map(tensor: torch.Tensor, tiles: HeadTiles | None) -> _Map:
    assert tiles is not None
    strides = [stride // tensor.element_size() for stride in tiles.strides]
    return _Map(
        tensor.data_ptr(), (ctypes.c_longlong * 4)(*tiles.sizes), (ctypes.c_longlong * 3)(*strides), tiles.height
    )
