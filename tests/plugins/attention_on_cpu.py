"""The texts of attention's kernels by wgmma on a CPU: tiles, barriers and products as Hopper has them, one by one."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from registry import Launch
from registry.backends.cuda import nvrtc, read_source
from registry.problem import Problem, TensorSpec
from registry.space import Config
from registry_cuda.attention.head_tiles import HeadTiles

from .wgmma_attention import CONTRACTS, SMALL_H200, implementation_of

Attend = Callable[..., tuple[torch.Tensor, ...]]
Maps = Sequence[tuple[str, HeadTiles | None]]
"""The tensors of a launch's maps, by name, and their tiles."""
Change = Callable[[str], str]
"""A change of a kernel's text."""
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
    'asm volatile("bar.sync %0, 128;" ::"r"(1 + warp / WARPS) : "memory");': (
        "cpu::named_barrier(1 + warp / WARPS, 128, true);"
    ),
    'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");': "",
    'asm volatile("" : "+r"(word[k])::"memory");': ";",
}
"""Instructions of the kernels' texts, and what stands for them."""
_ARGUMENTS_OF_MAP = 16
_BESIDE = 4096
"""Elements before and behind each output, which a kernel leaves as they are."""
_BEFORE, _BEHIND = slice(_BESIDE), slice(-_BESIDE, None)


class Late(IntEnum):
    """What happens when it is waited for, and not when it is asked for."""

    NONE = 0
    ALL = 1
    PRODUCTS = 2


class _Map(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_longlong * 4),
        ("strides", ctypes.c_longlong * 3),
        ("height", ctypes.c_int),
    )


class Rooms:
    """Tensors for outputs, by name, of numbers that are none, with such numbers before and behind each."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._rooms = {
            name: torch.full((spec.numel + 2 * _BESIDE,), torch.nan, dtype=spec.dtype) for name, spec in specs.items()
        }
        self.tensors = {name: room[_BESIDE:-_BESIDE].view(specs[name].shape) for name, room in self._rooms.items()}

    def check(self) -> None:
        """Raise RuntimeError if anything was written beside the tensors."""
        if not all(room[span].isnan().all() for room in self._rooms.values() for span in (_BEFORE, _BEHIND)):
            raise RuntimeError("numbers outside of an output")


class Emulation:
    """A launch's kernel, whose text from file ``first`` on is compiled for a CPU, changed or not.

    A call raises RuntimeError for what a GPU forbids, and for threads that wait for ever.
    """

    def __init__(self, launch: Launch, first: str, maps: int, folder: Path, change: Change | None = None) -> None:
        self.maps = maps
        text = "\n".join(
            [
                *(f"#define {name} {nvrtc.macro(name, value)}" for name, value in launch.constants.items()),
                '#include "warpgroups_on_cpu.hpp"',
                kernel_text(launch, first, change),
                self._wrapper(launch),
            ]
        )
        source = folder / f"{launch.kernel.name}{len(list(folder.glob('*.cpp')))}.cpp"
        self._library = ctypes.CDLL(str(_library(text, source)))
        self._library.launch.restype = ctypes.c_char_p

    def __call__(
        self, launch: Launch, maps: Maps, values: Mapping[str, Any], late: Late, watched: torch.Tensor | None = None
    ) -> None:
        """Run a launch of the kernel; bytes are copied from ``watched``."""
        if watched is not None:
            begin = watched.data_ptr()
            self._library.watch(ctypes.c_void_p(begin), ctypes.c_void_p(begin + watched.nbytes))
        given: dict[str, list[Any]] = {"pointers": [], "floats": [], "numbers": []}
        for argument in self._others(launch):
            value = values[argument] if isinstance(argument, str) else argument
            kind = _kind(argument)
            given[kind].append(value.data_ptr() if kind == "pointers" else value)
        types = {"pointers": ctypes.c_void_p, "floats": ctypes.c_float, "numbers": ctypes.c_longlong}
        arrays = [(types[kind] * len(each))(*each) for kind, each in given.items()]
        found = (_Map * len(maps))(*(_map(values[name], tiles) for name, tiles in maps))
        fault = self._library.launch(launch.grid[0], int(late), found, *arrays)
        if fault is not None:
            raise RuntimeError(fault.decode())

    def _others(self, launch: Launch) -> Sequence[str | float]:
        """The arguments behind the maps."""
        return launch.args[_ARGUMENTS_OF_MAP * self.maps :]

    def _wrapper(self, launch: Launch) -> str:
        """A function of C that runs the kernel with arrays of arguments of each kind."""
        counts = {"pointers": 0, "floats": 0, "numbers": 0}
        passed = [f"maps[{place}]" for place in range(self.maps)]
        for argument in self._others(launch):
            kind = _kind(argument)
            passed.append(
                f"cpu::Pointer{{pointers[{counts[kind]}]}}" if kind == "pointers" else f"{kind}[{counts[kind]}]"
            )
            counts[kind] += 1
        call = ", ".join([str(launch.options["block"]), str(launch.shared_bytes), "late", launch.kernel.name, *passed])
        return f"""
extern "C" void watch(const char *begin, const char *end) {{ cpu::watched[0] = begin, cpu::watched[1] = end; }}
extern "C" const char *launch(unsigned grid, cpu::Late late, const HeadMap *maps, void *const *pointers,
                              const float *floats, const long long *numbers) {{
  return cpu::run_grid(grid, {call});
}}
"""


def kernel_text(launch: Launch, first: str, change: Change | None = None) -> str:
    """The kernel's text without PTX, from file ``first`` on, behind what the emulation has in place of other files."""
    _, begin, text = launch.kernel.source.partition(f'#line 1 "{first}"')
    for instruction, stand_in in _PTX.items():
        text = text.replace(instruction, stand_in)
    assert begin
    assert "asm" not in text
    assert change is None or change(text) != text
    operands = (
        _function(read_source("registry_cuda.kernels", "tensor_map.cuh"), "swizzled_operand"),
        _function(read_source("registry_cuda.attention.kernels", "head_tiles.cuh"), "operand_of_rows"),
    )
    return "\n".join((*operands, change(text) if change else text))


def built(problem: Problem, config: Config, folder: Path, change: Change | None = None) -> Attend:
    """A function of the op's values that runs the forward's kernel, with copies and products early or late.

    It raises RuntimeError for what a GPU forbids, for threads that wait for ever, and for writes beside the outputs.
    """
    contract, implementation = CONTRACTS[problem.op], implementation_of(problem)
    assert not list(implementation.unsupported(problem, SMALL_H200))
    assert config in implementation.space(problem, SMALL_H200)
    launch = implementation.launch(problem, config, SMALL_H200)
    emulation = Emulation(launch, "sequence.cuh", 3, folder, change)
    heights = {"q": config["warpgroups"] * 64, "k": config["keys"], "v": config["keys"]}

    def attend(*values: Any, late: bool = False) -> tuple[torch.Tensor, ...]:
        arguments = contract.arguments(values)
        posed, named = contract.pose(arguments), dict(zip(contract.parsed.names, values, strict=True))
        rooms = Rooms(contract.output_specs(arguments, torch.device("cpu")))
        maps = [(name, implementation.tiles(posed, name, height)) for name, height in heights.items()]
        told = implementation.launch(posed, config, SMALL_H200)
        emulation(told, maps, {**named, **rooms.tensors}, Late(late))
        rooms.check()
        return tuple(rooms.tensors.values())

    return attend


def _kind(argument: str | float) -> str:
    if isinstance(argument, str):
        return "floats" if argument in {"scale", "softcap"} else "pointers"
    return "floats" if isinstance(argument, float) else "numbers"


def _function(text: str, name: str) -> str:
    found = re.search(rf"^__device__ inline [\w ]+ {name}\(.*?^}}$", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[0]


def _library(text: str, source: Path) -> Path:
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
