"""softmax and rms_norm, each in three forms: a row in one block's registers, in a cluster's, or read twice in tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from registry import Config, Device, Launch, Problem, Space
from registry.backends.cuda import CudaImplementation, CudaKernel, read_source

from .forms import Form, RowLength, cluster, default_of, looped, row, shape_of, space_of
from .number import C_TYPES, number_reasons

__all__ = ["CudaRmsNorm", "CudaSoftmax", "cluster", "looped", "row"]

_SHARED_FILES = ("number.cuh", "cluster.cuh", "row.cuh")


class _Rows(CudaImplementation):
    """One kernel over rows in one form. ``args`` are the kernel's parameters before the number of rows."""

    kernel: str
    args: tuple[str, ...]

    def __init__(self, form: Form) -> None:
        self.form = form
        self.name = form.name

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from number_reasons(problem)
        if problem.dtype in C_TYPES:
            yield from self.form.unsupported(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        return space_of(self.form, RowLength.of(problem))

    def default(self, problem: Problem, device: Device) -> Config:
        return default_of(self.form, RowLength.of(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        return self.form.preference(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        shape = shape_of(self.form, RowLength.of(problem), *config.items())
        return Launch(
            CudaKernel(self.source, self.kernel),
            grid=(-(-problem.rows // shape.rows) * shape.cluster,),
            args=(*self.args, problem.rows),
            constants={
                "ELEMENT": C_TYPES[problem.dtype],
                "COLS": problem.cols,
                "VEC": shape.vector,
                "ITEMS": shape.items,
                "THREADS": shape.threads,
                "ROWS": shape.rows,
                "CLUSTER": shape.cluster,
                **self.constants(problem),
            },
            options={"block": shape.threads * shape.rows},
            cluster=(shape.cluster,) if shape.cluster > 1 else (),
        )

    def constants(self, problem: Problem) -> dict[str, Any]:
        """Macros of this kernel alone."""
        return {}


class CudaSoftmax(_Rows):
    """Online softmax (Milakov and Gimelshein, 2018), one reduction of maximum and sum together."""

    op = "softmax"
    kernel = "softmax"
    args = ("y", "x")
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "softmax.cu")


class CudaRmsNorm(_Rows):
    """Sum of squares in fp32, one rounding at the end."""

    op = "rms_norm"
    mixed = True
    kernel = "rms_norm"
    args = ("y", "x", "weight", "eps")
    source = read_source(f"{__package__}.kernels", *_SHARED_FILES, "rms_norm.cu")

    def constants(self, problem: Problem) -> dict[str, Any]:
        return {"MIXED": problem.traits["mixed"]}
