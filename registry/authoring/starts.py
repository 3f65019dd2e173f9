"""The implementations with which a new package may begin: by op and backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..contract import Op
from ..errors import RegistryError, UnknownNameError

BACKENDS = ("triton", "torch", "cuda", "cpp")

_SUFFIXES = {"triton": "py", "cuda": "cu", "cpp": "cpp"}
_VARIANTS = {"triton": "start", "torch": "torch", "cuda": "start", "cpp": "start"}


@dataclass(frozen=True)
class Start:
    """The facts of an op that the templates need: the arguments of its kernel, and how torch computes it.

    ``args`` are names and numbers of a launch, ``parameters`` and ``expression`` are Python's.
    """

    args: tuple[str, ...] = ()
    rows: bool = False
    parameters: str = ""
    expression: str = ""
    shapes: tuple[str, ...] = field(default=())


_ROWS = (
    "{rows: [16, 512], cols: [256, 4096], dtype: float32}",
    "{rows: 4096, cols: 4096, dtype: bfloat16}",
)
STARTS: Mapping[str, Start] = {
    "square": Start(
        ("y", "x"),
        parameters="x: torch.Tensor",
        expression="x * x",
        shapes=("{n: [4096, 1000000], dtype: float32}", "{n: 16777216, dtype: bfloat16}"),
    ),
    "softmax": Start(
        ("y", "x"),
        rows=True,
        parameters="x: torch.Tensor, dim: int = -1",
        expression="torch.softmax(x, dim)",
        shapes=_ROWS,
    ),
    "rms_norm": Start(
        ("y", "x", "weight", "eps"),
        rows=True,
        parameters="x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6",
        expression="torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)",
        shapes=_ROWS,
    ),
}
"""Ops that each backend has a first kernel for; every other op begins with its reference, by torch."""


def start_of(op: Op, backend: str) -> Start:
    """The start for an op. Raises UnknownNameError or RegistryError where a backend has no kernel to begin with."""
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if op.name in STARTS:
        return STARTS[op.name]
    if backend != "torch":
        raise RegistryError(
            f"there is no {backend} kernel of {op.name} to begin with",
            hint=f"there is one of {', '.join(STARTS)}; --backend torch begins with the reference of any op",
        )
    return Start(shapes=tuple(_entry(dims) for dims in op.examples[:2]))


def kernel_file(module: str, backend: str) -> str:
    """The name of the kernel's file, "" for torch."""
    return f"{module}.{_SUFFIXES[backend]}" if backend in _SUFFIXES else ""


def variant_of(backend: str) -> str:
    """The part of the implementation's name after the plugin's."""
    return _VARIANTS[backend]


def _entry(dims: Mapping[str, object]) -> str:
    told = (f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in dims.items())
    return f"{{{', '.join(told)}}}"
