"""The error rule, by which an output is compared with a float64 reference.

Every element must satisfy ``|out - ref| <= rtol[dtype] * scale + atol``, and the largest error must not exceed twice
that of the op's own reference run in the output's dtype, plus one rounding. NaN and infinity must stand where the
reference, rounded to that dtype, has them. Results that are not floating must equal the reference, and there is no rule
for complex ones. An output may have a billion elements, so it is compared in pieces.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..arguments.schema import with_tensors
from ..author_code import at
from ..contract import Op, Outputs, Tolerance, as_tuple
from ..errors import InvalidDefinitionError
from ..problem import Problem, dtype_name
from .magnitudes import calculable, finite, in_range, is_float8, largest, largest_finite, magnitude

CHUNK = 2**22
"""Elements compared at a time: some ten float64 temporaries of 32 MiB each."""
_CHUNK_OF_MEMORY = 2**-12
"""Elements compared at a time on a GPU, per byte of its memory, up to eight chunks: eight take as long to launch as
one."""


@dataclass(frozen=True)
class Comparison:
    """The verdict on a call's outputs.

    ratio    worst error over the allowed error; right when at most 1, ``inf`` for a wrong NaN or infinity
    error    largest absolute error where both are finite
    where    name of the output and index of the worst element
    message  what is wrong, "" when nothing is
    """

    ok: bool
    ratio: float
    error: float
    where: tuple[str, tuple[int, ...]]
    message: str = ""


def widened(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every floating tensor in float64, every complex one in complex128."""

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
        return tensor

    return with_tensors(values, wide)


@torch.no_grad()
def reference64(op: Op, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The results of the op's reference run in float64 on the arguments (the schema's values in order).

    Results that the reference itself rounds to float8 are in float32.
    """
    return tuple(map(calculable, results_of(op, widened(values))))


@torch.no_grad()
def own_error(op: Op, _: Problem, values: tuple[Any, ...], reference: Outputs) -> tuple[float, ...]:
    """Largest absolute error, per result, of the op's reference run in the arguments' own dtype; 0 if not floating.

    In full precision: if the process allows TF32 for float32 products, candidates must not be judged more loosely.
    """
    with full_precision():
        results = results_of(op, values)
    return tuple(_largest_error(result, wide) for result, wide in zip(results, as_tuple(reference), strict=True))


def results_of(op: Op, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """``Op.results`` of the op's reference run on the arguments; mutated arguments are copied first.

    Raises InvalidDefinitionError if their number is not the schema's, and for a complex one that no comparator of the
    op judges.
    """
    fresh = with_tensors(values, torch.clone) if op.parsed.mutates else values
    results = op.results(op.reference(*fresh), fresh)
    if len(results) != len(op.parsed.results):
        names = op.parsed.outputs
        found = len(results) - len(op.parsed.results) + len(names)
        form = ": return them as a tuple, a list counts as one" if len(names) > 1 else ""
        raise InvalidDefinitionError(
            f"op {op.name!r}: its reference returned {found or 'None, no'} output{'s' * (found > 1)}{at(op.reference)}",
            hint=f"its schema names {len(names)}, {', '.join(names)}{form}"
            if names
            else "its schema names none: return None",
        )
    for name, result in zip(op.parsed.results, results, strict=True):
        if not isinstance(result, torch.Tensor):
            raise InvalidDefinitionError(
                f"op {op.name!r}: its reference returns a {type(result).__name__} as {name}{at(op.reference)}",
                hint="expected a tensor for each output: one tensor, or a tuple of several",
            )
        if result.is_complex() and name not in op.compare:
            raise InvalidDefinitionError(
                f"op {op.name!r} has a result of {dtype_name(result.dtype)}, {name}: there is no error rule for complex"
                " numbers",
                hint=f"let it return real ones (torch.view_as_real), or judge {name} by compare={{{name!r}: ...}}",
            )
    return results


def _largest_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    if not output.is_floating_point():
        return 0.0
    if magnitude([reference]) <= largest_finite(output.dtype):
        error = magnitude(calculable(piece.output) - piece.reference for piece in pieces(output, reference))
        if math.isfinite(error):
            return error
    return largest([_errors(piece.output, piece.reference)[0].max() for piece in pieces(output, reference)])


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """A context in which float32 matrix products are computed in float32, whatever the settings of torch."""
    mkldnn: Any = torch.backends.mkldnn
    lowered = {
        backend: backend.fp32_precision
        for backend in (torch.backends.cuda.matmul, mkldnn.matmul)
        if backend.fp32_precision not in {"none", "ieee"}
    }
    for backend in lowered:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, asked in lowered.items():
            backend.fp32_precision = asked


@torch.no_grad()
def compare(
    op: Op,
    problem: Problem,
    results: Outputs,
    reference: Outputs,
    torch_error: tuple[float, ...],
    values: tuple[Any, ...] = (),
) -> Comparison:
    """Compare ``Op.results`` with ``reference`` (of ``reference64``), given ``torch_error`` (of ``own_error``).

    ``values`` are the arguments as they were before the call; required by ops whose tolerance or comparator takes
    them. Shapes and dtypes must be right already: see ``output_faults``.
    """
    named = dict(zip(op.parsed.names, values, strict=False))
    parts = list(zip(op.parsed.results, as_tuple(results), as_tuple(reference), torch_error, strict=True))
    outputs, references = {part[0]: part[1] for part in parts}, {part[0]: part[2] for part in parts}
    found = [_compare_one(op, problem, named, *part) for part in parts if part[0] not in op.compare]
    for name, comparator in op.compare.items():
        faults = _told_by(op, name, comparator(problem, named, outputs, references))
        message = f"{name}: {'; '.join(faults)}" if faults else ""
        found.append(Comparison(not faults, math.inf if faults else 0.0, 0.0, (name, ()), message))
    return max(found, key=lambda each: (not each.ok, each.ratio))


def _told_by(op: Op, name: str, given: Iterable[str] | None) -> list[str]:
    """The faults that the comparator of result ``name`` returned. Raises InvalidDefinitionError if it is no list."""
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidDefinitionError(
            f"op {op.name!r}: compare of {name} returned {given!r:.80}{at(op.compare[name])}",
            hint="yield each fault in words, and nothing where the result is right",
        )
    return list(given)


def judged(op: Op, problem: Problem, results: Outputs, values: tuple[Any, ...]) -> Comparison:
    """``compare`` with the reference on ``values``, which this function computes."""
    reference = reference64(op, values)
    return compare(op, problem, results, reference, own_error(op, problem, values, reference), values)


@dataclass(frozen=True)
class Piece:
    """Some rows of an output: ``first`` is the flat index of their first element."""

    first: int
    output: torch.Tensor
    reference: torch.Tensor


def pieces(output: torch.Tensor, reference: torch.Tensor) -> Iterator[Piece]:
    """An output in pieces of whole rows of the last dimension, which an op's scale may reduce over; or in spans."""
    if output.numel() == 0:
        return
    cols = output.shape[-1] if output.dim() > 1 else 1
    rows, wide = output.reshape(-1, cols), reference.reshape(-1, cols)
    if output.dim() <= 1:
        rows, wide = rows.view(-1), wide.view(-1)
    step = max(1, _chunk(output.device) // cols)
    for start in range(0, rows.shape[0], step):
        yield Piece(start * cols, rows[start : start + step], wide[start : start + step])


@lru_cache(maxsize=16)
def _chunk(device: torch.device) -> int:
    if device.type != "cuda":
        return CHUNK
    wanted = _CHUNK_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory
    return max(CHUNK, min(8 * CHUNK, int(wanted)))


def _errors(output: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(absolute errors, 0 unless both are finite; a mask of wrong NaN and infinity, None where all is finite).

    For an output that is not floating the mask is where it differs: float64 does not distinguish large integers.
    """
    if (error := _finite_errors(output, reference)) is not None:
        return error, None
    expected = reference.to(output.dtype)
    if not output.is_floating_point():
        return (output.to(torch.float64) - expected.to(torch.float64)).abs_(), output != expected
    reference = in_range(reference, output.dtype)
    output, expected = calculable(output), calculable(expected)
    finite = output.isfinite() & expected.isfinite()
    same = (output == expected) | (output.isnan() & expected.isnan())
    error = (output.to(torch.float64) - reference).abs_().masked_fill_(~finite, 0.0)
    return error, ~(finite | same)


def _finite_errors(output: torch.Tensor, reference: torch.Tensor) -> torch.Tensor | None:
    """Absolute errors in a third of the time; None where an element is, or should be, NaN or infinite."""
    if is_float8(output.dtype) or not magnitude([reference]) <= largest_finite(output.dtype):
        return None
    error = (output.to(torch.float64) - reference).abs_()
    return error if math.isfinite(largest([error.max()])) else None


@dataclass
class _Worst:
    """The worst elements of one output so far."""

    ratio: float = 0.0
    place: int = 0
    error: float = 0.0
    scale: float = 0.0

    def add(self, piece: Piece, error: torch.Tensor, allowed: torch.Tensor, wrong: torch.Tensor | None) -> None:
        ratio = torch.where(error == 0, 0.0, error / allowed)
        if wrong is not None:
            ratio.masked_fill_(wrong, math.inf)
        place = int(ratio.argmax())
        if (worst := ratio.reshape(-1)[place].item()) > self.ratio:
            self.ratio, self.place = worst, piece.first + place
        self.error = max(self.error, error.max().item())


def _compare_one(
    op: Op,
    problem: Problem,
    values: Mapping[str, Any],
    name: str,
    output: torch.Tensor,
    reference: torch.Tensor,
    torch_error: float,
) -> Comparison:
    rtol, atol, unit = tolerance_of(op, name, output.dtype)
    if output.numel() == 0:
        return Comparison(True, 0.0, 0.0, (name, ()))
    worst = _Worst()
    scale_of = scales(op.tolerance_of(name), problem, values, output.dtype, reference)
    for piece in pieces(output, reference):
        error, wrong = _errors(piece.output, piece.reference)
        scale = scale_of(piece)
        worst.scale = max(worst.scale, scale.max().item())
        worst.add(piece, error, rtol * scale + atol, wrong)
    limit = 2 * torch_error + unit * worst.scale + atol
    index = tuple(map(int, np.unravel_index(worst.place, output.shape)))
    message = _message(f"{name}{list(index)}", worst, output[index], reference[index], torch_error, limit)
    return Comparison(not message, worst.ratio, worst.error, (name, index), message)


def scales(
    tolerance: Tolerance, problem: Problem, values: Mapping[str, Any], dtype: torch.dtype, reference: torch.Tensor
) -> Callable[[Piece], torch.Tensor]:
    """The scale of each piece of a result of that dtype; 0 for one that is not floating."""
    if not dtype.is_floating_point:
        return lambda piece: torch.zeros((), dtype=torch.float64, device=piece.reference.device)
    if not tolerance.by_values:
        return lambda piece: tolerance.scaled(problem, finite(in_range(piece.reference, dtype)))
    whole = tolerance.scaled(problem, finite(in_range(reference, dtype)), values).expand(reference.shape).reshape(-1)

    def of_piece(piece: Piece) -> torch.Tensor:
        return whole[piece.first : piece.first + piece.reference.numel()].view(piece.reference.shape)

    return of_piece


def _message(
    where: str, worst: _Worst, output: torch.Tensor, reference: torch.Tensor, torch_error: float, limit: float
) -> str:
    if worst.ratio > 1:
        told = f"{_told_apart(worst.ratio, 1.0)[0]} times what is allowed"
        allowed = told if math.isfinite(worst.ratio) else "not allowed at all"
        return f"{where} is {_shown(output)}, expected {_shown(reference)}: {allowed}"
    if worst.error > limit:
        error, most = _told_apart(worst.error, limit)
        return (
            f"largest error {error} is more than {most}: twice the reference's own in "
            f"{dtype_name(output.dtype)} ({torch_error:.3g}), atol, and one rounding of the tolerance's scale"
            f" (at most {worst.scale:.3g})"
        )
    return ""


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with three digits, or more if their texts would be equal: 1.0004 beside 1 is not shown as 1."""
    pairs = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(3, 18))
    return next(pair for pair in pairs if pair[0] != pair[1])


def _shown(number: torch.Tensor) -> str:
    value = number.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def tolerance_of(op: Op, result: str, dtype: torch.dtype) -> tuple[float, float, float]:
    """rtol, atol and unit roundoff; results that are not floating must be equal.

    Raises InvalidDefinitionError for a floating dtype that the op has no tolerance for.
    """
    if not dtype.is_floating_point:
        return 0.0, 0.0, 0.0
    name, tolerance = dtype_name(dtype), op.tolerance_of(result)
    if name not in tolerance.rtol or name not in tolerance.atol:
        raise InvalidDefinitionError(
            f"op {op.name!r} has a result of {name} but no tolerance for it: {result}",
            hint=f"its rtol has {', '.join(tolerance.rtol)}, its atol {', '.join(tolerance.atol)}",
        )
    return tolerance.rtol[name], tolerance.atol[name], torch.finfo(dtype).eps / 2
