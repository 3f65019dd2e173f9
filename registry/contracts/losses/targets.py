"""Arguments of the losses over a vocabulary: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, check_choice, dtype_name
from ...tracing import refuse
from .. import fills
from ..checks import FLOATS, check_values, float_dtype, float_tensor, positive, same_dtype, shape_text
from ..softmax import mask_front

REDUCTIONS = ("mean", "sum", "none")
KINDS = ("normal", "outliers", "spike_last", "constant", "masked", "ignored", "smoothed", "outside")

_SHAPES = ((1, 1), (3, 7), (5, 128), (2, 1000), (33, 1025), (6, 4099))
_FAR = 2**40
"""A target that is outside of every vocabulary, and whose address is outside of every tensor."""


def accumulator(logits: torch.Tensor) -> torch.dtype:
    """The dtype in which a loss is computed, and of the log-sum-exp: float32 for halves."""
    return torch.promote_types(logits.dtype, torch.float32)


@dataclass(frozen=True)
class Targets:
    """The targets of rows: which rows count, which are in the vocabulary, and the weight of each row's target.

    ``place`` is the target, 0 where it is ignored or outside; there ``gain`` is 0, too.
    """

    kept: torch.Tensor
    inside: torch.Tensor
    place: torch.Tensor
    gain: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int) -> Targets:
        """The targets of ``logits`` [rows, cols]."""
        return cls.among(logits.shape[-1], target, ignore_index, accumulator(logits), weight)

    @classmethod
    def among(
        cls,
        cols: int,
        target: torch.Tensor,
        ignore_index: int,
        dtype: torch.dtype,
        weight: torch.Tensor | None = None,
    ) -> Targets:
        """Targets among ``cols`` classes; ``gain`` has the ``dtype``."""
        kept = target != ignore_index
        inside = (target >= 0) & (target < cols)
        counts = kept & inside
        place = torch.where(counts, target, 0)
        of_class = torch.ones_like(target, dtype=dtype) if weight is None else weight[place].to(dtype)
        return cls(kept, inside, place, of_class.masked_fill(~counts, 0.0))


def check_smoothing(op: str, label_smoothing: float) -> None:
    """Raise InvalidArgumentError unless ``label_smoothing`` is between 0 and 1; NaN is not."""
    if not 0.0 <= label_smoothing <= 1.0:
        refuse(f"{op}: label_smoothing={label_smoothing}", hint="expected a number from 0 to 1")


def loss_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``logits``, ``target``, ``weight`` and ``reduction``, forward and backward."""
    op = arguments.op
    check_choice(op, "reduction", arguments.text("reduction"), REDUCTIONS)
    check_smoothing(op, arguments.number("label_smoothing"))
    logits, target = float_tensor(arguments, "logits"), arguments.tensor("target")
    if len(logits.shape) != 2 or not logits.shape[1]:
        raise InvalidArgumentError(
            f"{op}: logits has shape {shape_text(logits.shape)}, expected [rows, cols] with at least one column",
            hint="of [batch, seq, vocabulary] make rows: logits.flatten(0, -2), target.flatten()."
            " torch's [batch, classes, ...] is logits.movedim(1, -1).flatten(0, -2)",
        )
    check_target(op, ("logits", logits), target)
    if arguments["weight"] is not None:
        _check_weight(op, logits, float_tensor(arguments, "weight"))
    rows, cols = logits.shape
    return {
        "rows": rows,
        "cols": cols,
        "reduction": arguments.text("reduction"),
        "weight": arguments["weight"] is not None,
        "dtype": dtype_name(logits.dtype),
    }


def check_target(op: str, of: tuple[str, TensorSpec], target: TensorSpec) -> None:
    """Raise InvalidArgumentError unless ``target`` is int64 with one class for each row of the tensor ``of``."""
    name, spec = of
    if target.dtype != torch.int64:
        floating = target.dtype.is_floating_point
        raise InvalidArgumentError(
            f"{op}: target is {dtype_name(target.dtype)}, expected int64, a class for each row",
            hint="of probabilities take torch.nn.functional.cross_entropy" if floating else "target.long()",
        )
    if target.shape != spec.shape[:1]:
        raise InvalidArgumentError(
            f"{op}: target has shape {shape_text(target.shape)} but {name} has {spec.shape[0]} rows"
            f" (shape {shape_text(spec.shape)})",
            hint=f"expected a target of shape {spec.shape[0]}, e.g. target.flatten()",
        )


def check_target_data(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for a target that is neither a class nor ``ignore_index``.

    The classes are the columns of ``logits``, and where these are computed the rows of ``weight``.
    """
    target, ignored = values["target"], values["ignore_index"]
    classes = values["logits"].shape[1] if "logits" in values else values["weight"].shape[0]
    wrong = (target != ignored) & ((target < 0) | (target >= classes))
    hint = "does the tokenizer fit the model?"
    check_values(op, "target", target, wrong, f"0 to {classes - 1}, a class, or ignore_index={ignored}", hint)


def _check_weight(op: str, logits: TensorSpec, weight: TensorSpec) -> None:
    if weight.shape != logits.shape[1:]:
        raise InvalidArgumentError(
            f"{op}: weight has shape {shape_text(weight.shape)} but logits has {logits.shape[1]} columns"
            f" (shape {shape_text(logits.shape)})",
            hint=f"expected one weight for each class, of shape {logits.shape[1]}, or None",
        )
    same_dtype(op, ("logits", logits), ("weight", weight))


def check_loss(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call of a loss has."""
    positive(problem, "rows", "cols")
    float_dtype(problem)


def drawn(
    problem: Problem, kind: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int, float]:
    """logits, target, weight, ignore_index and label_smoothing of every kind."""
    rows, cols, dtype = problem.rows, problem.cols, problem.torch_dtype
    device = generator.device
    target = torch.randint(cols, (rows,), device=device, generator=generator)
    weight = fills.normal((cols,), dtype, generator).mul_(0.25).add_(1.0) if problem.weight else None
    if kind == "constant":
        # exp(-120) is 0 in fp32: without the maximum subtracted the sum is 0, and its logarithm infinite
        return fills.constant((rows, cols), dtype, generator, -120.0), target, weight, -100, 0.0
    logits = fills.normal((rows, cols), dtype, generator)
    ignore_index, smoothing = -100, 0.0
    if kind == "outliers":
        # exp(200) overflows fp32
        fills.plant_outliers(logits, 200.0, generator)
    elif kind == "spike_last":
        # the last column has nearly all of the probability, and is the target of every other row
        logits[:, -1:] = 20.0
        target[::2] = cols - 1
    elif kind == "masked":
        mask_front(logits, generator)
        _aim_at_finite(problem, logits, target, generator)
    elif kind == "ignored":
        ignore_index = ignore_some(cols, logits, target)
    elif kind == "smoothed":
        smoothing = 0.3
        # a mean of the logits far from 0, in which a row's last column counts as much as many others
        logits.add_(2.0)
        logits[:, -1:] = -min(64.0 * cols, 60_000.0)
        target[rows // 2 :: 3] = ignore_index
    elif kind == "outside":
        aim_outside(target, cols)
    return logits, target, weight, ignore_index, smoothing


def aim_outside(target: torch.Tensor, cols: int) -> None:
    """Let every third of at least three targets be outside of ``cols`` classes."""
    if len(target) > 2:
        far = torch.tensor((cols, -1, _FAR, -_FAR), device=target.device).repeat(len(target))
        target[::3] = far[: len(target[::3])]


def ignore_some(cols: int, rows: torch.Tensor, target: torch.Tensor) -> int:
    """Ignore two rows of three, by a class of the vocabulary, and fill them with NaN: they must not be read.

    Returns the class. ``rows`` [rows, ...] has what is read of each row.
    """
    ignored = cols // 2 if cols > 1 else -1
    for first in (0, 1):
        target[first::3] = ignored
        rows[first::3] = torch.nan
    return ignored


def _aim_at_finite(problem: Problem, logits: torch.Tensor, target: torch.Tensor, generator: torch.Generator) -> None:
    """Let targets be the last column, which is finite; one NaN or infinity would make a mean or a sum NaN."""
    if problem.reduction == "none":
        # a masked target has the loss inf; a NaN and an infinity make their row's NaN
        target[1::2] = problem.cols - 1
        fills.plant_in_rows(logits, (torch.nan, torch.inf), generator)
    else:
        target.fill_(problem.cols - 1)


def loss_examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems with every reduction, with and without a weight; one in float64."""
    pairs = [(torch.float64, (3, 130)), *((dtype, shape) for dtype in FLOATS for shape in _SHAPES)]
    return tuple(
        {
            "rows": rows,
            "cols": cols,
            "reduction": REDUCTIONS[(place + place // len(_SHAPES)) % 3],
            "weight": place % 4 == 1,
            "dtype": dtype_name(dtype),
        }
        for place, (dtype, (rows, cols)) in enumerate(pairs)
    )
