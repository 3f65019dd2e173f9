"""cuBLASLt's products as implementations: which algorithm of the heuristics runs is tuned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from registry import Config, Device, Implementation, Problem, Space, TensorSpec
from registry.artifact import Built
from registry.implementation import Run, Tensors

from .form import BLOCK, MatmulForm, float8_reasons, int8_reasons, linear_reasons
from .library import LIBRARY, cublas_version, library_version
from .plans import EnqueueMatmul, chosen, launcher

_SPACE = Space(algorithm=list(range(12)), workspace_mib=[0, 32])
"""``algorithm`` is a place in the library's list, which differs with the workspace; 32 MiB is what it advises."""


class _Product(Implementation):
    """A product by one call of the library. A size has a list of algorithms of its own, so that no winner transfers."""

    transfers = False

    def preference(self, problem: Problem, device: Device) -> float:
        """Below every other implementation: until a tune has chosen an algorithm, it runs what torch would run."""
        return -5.0

    def space(self, problem: Problem, device: Device) -> Space:
        """A place in the list of algorithms, and whether they may use memory, as those that split k do."""
        return _SPACE

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        size = _workspace(config)
        return {"workspace": TensorSpec.contiguous((size,), torch.uint8)} if size else {}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Ask the heuristics, and plan the product. Raises UnsupportedError where their list is shorter."""
        form, workspace, index = MatmulForm.of(problem), _workspace(config), device.index
        with torch.cuda.device(index):
            algorithm = chosen(form, config["algorithm"], workspace, index)
            return self.run(problem, launcher(form, algorithm, workspace, index), bool(workspace))

    @abstractmethod
    def run(self, problem: Problem, enqueue: EnqueueMatmul, has_workspace: bool) -> Run:
        """The run around a launch; the workspace is the first scratch tensor."""

    def sources(self) -> Iterable[ModuleType | str]:
        """The class's modules, and the versions of which the order of algorithms is."""
        shown = ".".join(map(str, cublas_version()))
        return (*super().sources(), f"{LIBRARY} {library_version()}, cuBLAS {shown}")


class LtLinear(_Product):
    """``x @ weight.T + bias`` in float32, float16 or bfloat16, with sums in float32."""

    op = "linear"
    name = "cublaslt.matmul"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from linear_reasons(problem, device)

    def run(self, problem: Problem, enqueue: EnqueueMatmul, has_workspace: bool) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, weight, bias = arguments
            pointers = () if bias is None else (bias.data_ptr(),)
            memory = scratch[0].data_ptr() if has_workspace else 0
            enqueue(weight.data_ptr(), x.data_ptr(), outputs[0].data_ptr(), pointers, memory)

        return run


class LtFloat8(_Product):
    """float8_e4m3fn with scales of tensors, rows or blocks, without fast accumulation."""

    op = "scaled_mm"
    name = "cublaslt.fp8"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from float8_reasons(problem, device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """Besides the workspace: scales of a row's blocks column by column, as the library reads them."""
        found = dict(super().scratch(problem, config, device))
        if problem.scales == "block":
            found["columns"] = TensorSpec.contiguous((problem.k // BLOCK, problem.m), torch.float32)
        return found

    def run(self, problem: Problem, enqueue: EnqueueMatmul, has_workspace: bool) -> Run:
        blocks, in_blocks = problem.k // BLOCK, problem.scales == "block"

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            a, b, scale_a, scale_b, bias, _ = arguments
            if in_blocks:
                scale_a = scratch[-1].copy_(scale_a.view(-1, blocks).t())
            added = () if bias is None else (bias.data_ptr(),)
            pointers = (scale_b.data_ptr(), scale_a.data_ptr(), *added)
            memory = scratch[0].data_ptr() if has_workspace else 0
            enqueue(b.data_ptr(), a.data_ptr(), outputs[0].data_ptr(), pointers, memory)

        return run


class LtInt8(_Product):
    """int8 summed exactly in int32, then two passes for the scales and the bias."""

    op = "scaled_mm"
    name = "cublaslt.int8"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from int8_reasons(problem, device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """Besides the workspace: the product in int32, and with the scales of its rows."""
        shape = (problem.m, problem.n)
        sums, scaled = TensorSpec.contiguous(shape, torch.int32), TensorSpec.contiguous(shape, torch.float32)
        return {**super().scratch(problem, config, device), "sums": sums, "scaled": scaled}

    def run(self, problem: Problem, enqueue: EnqueueMatmul, has_workspace: bool) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            a, b, scale_a, scale_b, bias, _ = arguments
            *memory, sums, scaled = scratch
            enqueue(b.data_ptr(), a.data_ptr(), sums.data_ptr(), (), memory[0].data_ptr() if has_workspace else 0)
            finished(sums, scaled, scale_a, scale_b, bias, outputs[0])

        return run


def finished(
    sums: torch.Tensor,
    scaled: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
) -> None:
    """Write ``sums * scale_a * scale_b + bias`` into ``y``: int32 ``[m, n]``, by way of ``scaled``, in float32."""
    columns, into = scale_b.view(-1), y.view(sums.shape)
    torch.mul(sums, scale_a.view(-1, 1), out=scaled)
    if bias is None:
        torch.mul(scaled, columns, out=into)
    else:
        torch.addcmul(bias, scaled, columns, out=into)


def _workspace(config: Config) -> int:
    return int(config["workspace_mib"]) << 20
