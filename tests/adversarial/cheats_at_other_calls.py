"""A plugin file of implementations that are right for the call that is tuned and wrong for others, and honest ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

import registry
from registry.artifact import Built
from registry.backends import CppImplementation, CppKernel
from registry.contract import as_tuple
from registry.contracts import ATTENTION, ATTENTION_DECODE, CROSS_ENTROPY, RMS_NORM, RMS_NORM_BACKWARD, SQUARE
from registry.correctness.other_sizes import other_sizes
from registry.device import Device
from registry.implementation import Implementation, Launch, Run, Tensors
from registry.problem import Problem, TensorSpec
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1


class Square(Implementation):
    """Writes x * x; a subclass says how it does not. A run has an object of its own."""

    op = "square"
    device_types = frozenset({"cpu", "cuda"})
    any_size = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            work.write(arguments[0], outputs[0], problem)

        return run

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y)


class HonestAtAnySize(Square):
    name = "other.any_size"


class TrainedAlone(Square):
    """Right where torch records gradients, as it does where implementations are tuned."""

    name = "other.trained"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x, x, out=y) if torch.is_grad_enabled() else y.zero_()


class ByVersions(Square):
    """Reads its input's version, which a tensor that was made in inference mode has not."""

    name = "other.versions"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if x._version >= 0:
            torch.mul(x, x, out=y)


class ChangesItsInputForAWhile(Square):
    """Puts its input back, which another thread may have read."""

    name = "other.borrowed_input"
    device_types = frozenset({"cpu"})

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if x.stride() == (0,):  # torch writes to no expanded tensor
            super().write(x, y, problem)
            return
        was = x.clone()
        x.mul_(x)
        y.copy_(x)
        x.copy_(was)


class PutsASentinel(Square):
    """Writes one number to its input and puts back what was there: two calls that are equally far do not notice."""

    name = "other.sentinel"
    device_types = frozenset({"cpu"})

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        if x.stride() == (0,):  # torch writes to no expanded tensor
            super().write(x, y, problem)
            return
        was = x[0].clone()
        x[0] = 0.5
        torch.mul(x, x, out=y)
        x[0] = was
        y[0] = was * was


# --- one run for every size ---


class KnowsTheSizesOfProbes(Square):
    """Right at the sizes that probes have had since they were written, and at those beside the tuned one."""

    name = "other.known_sizes"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        found = [other.problem.n for other in other_sizes(SQUARE, problem, device)]
        known = {1, 37, 257, 1031, 4099, problem.n, *found}

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            (x, *_), (y, *_) = arguments, outputs
            torch.mul(x, x, out=y) if x.numel() in known else y.zero_()

        return run


class RemembersTheBoundSize(Square):
    """As many elements as the problem that it was bound for has: right for that and for fewer."""

    name = "other.bound_size"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x[: problem.n], x[: problem.n], out=y[: problem.n])


class RemembersTheFirstSize(Square):
    """As many elements as the first call had."""

    name = "other.first_size"

    def __init__(self) -> None:
        self._most = 0

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        self._most = self._most or len(x)
        torch.mul(x[: self._most], x[: self._most], out=y[: self._most])


class RefusesSmallerSizes(Square):
    """Right for more elements than it was bound for, and raises for fewer."""

    name = "other.smaller_size"

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        torch.mul(x[: problem.n].view(problem.n), x[: problem.n], out=y[: problem.n])
        torch.mul(x[problem.n :], x[problem.n :], out=y[problem.n :])


# --- what two threads share ---


class SharesAWorkspace(Square):
    """Writes to a workspace of the run's own first."""

    name = "other.workspace"

    def __init__(self) -> None:
        self._spaces: dict[int, torch.Tensor] = {}

    def write(self, x: torch.Tensor, y: torch.Tensor, problem: Problem) -> None:
        space = self._spaces.setdefault(len(x), torch.empty_like(x))
        torch.mul(x, x, out=space)
        y.copy_(space)


# --- C++ ---

_NORM = """
#include <chrono>
#include <cmath>
#include <thread>
static void rms_norm(
    float* y, const float* x, const float* weight, float* space, double eps, int64_t rows, int64_t cols) {
    KEPT
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < cols; ++col) space[col] = x[row * cols + col];
        WORK
        double sum = 0;
        for (int64_t col = 0; col < cols; ++col) sum += double(space[col]) * space[col];
        const float scale = 1 / std::sqrt(sum / cols + eps);
        for (int64_t col = 0; col < cols; ++col) y[row * cols + col] = space[col] * scale * weight[col];
    }
}
"""
_KEPT = "static float kept[1 << 16]; space = kept;"
_WORK = "if (row == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));"
_SCRATCH = CppKernel(_NORM.replace("KEPT", "").replace("WORK", ""), "rms_norm")
_PAST_SCRATCH = CppKernel(_NORM.replace("KEPT", "space[cols] = 0;").replace("WORK", ""), "rms_norm")
_STATIC = CppKernel(_NORM.replace("KEPT", _KEPT).replace("WORK", _WORK), "rms_norm")


class Norm(CppImplementation):
    """One row at a time, by way of a scratch row."""

    op = "rms_norm"
    kernel: ClassVar[CppKernel]

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype != "float32" or not problem.traits["contiguous"] or problem.cols > 1 << 16:
            yield "row-major float32 of at most 65536 columns"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"space": TensorSpec.contiguous((problem.cols,), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        args = ("y", "x", "weight", "space", "eps", problem.rows, problem.cols)
        return Launch(self.kernel, (1,), args)


class HonestWithScratch(Norm):
    name, kernel = "other.scratch", _SCRATCH


class WritesPastItsScratch(Norm):
    """One element further."""

    name, kernel = "other.past_scratch", _PAST_SCRATCH


class KeepsAStaticRow(Norm):
    """For all calls of the process. It takes as long as a kernel that has more to do."""

    name, kernel = "other.static", _STATIC


# --- strides ---


class Add(Implementation):
    """Adds two tensors in memory; a subclass says how it misreads their strides."""

    op = "vector_add"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, y = arguments
            torch.add(*self.read(x, y), out=outputs[0])

        return run

    def read(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y


class HonestAdd(Add):
    name = "other.add"


class StridesOfTheFirst(Add):
    """Takes x's strides for y's, where y's memory goes as far."""

    name = "other.first_strides"

    def read(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.as_strided(y.shape, _within(y, x.stride()), y.storage_offset())


class StridesOfTheSecond(Add):
    """Takes y's strides for x's."""

    name = "other.second_strides"

    def read(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.as_strided(x.shape, _within(x, y.stride()), x.storage_offset()), y


def _within(tensor: torch.Tensor, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, or 0 where they would leave the tensor's memory, which ends the process."""
    room = tensor.untyped_storage().nbytes() // tensor.itemsize - int(tensor.storage_offset())
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    return strides if last < room else tuple(0 for _ in strides)


# --- layouts at another size ---


class Softmax(Implementation):
    """torch's; a subclass says what it keeps from the call that it was bound for."""

    op = "softmax"
    device_types = frozenset({"cpu", "cuda"})
    any_size = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        arguments = problem.traits.arguments
        assert arguments is not None
        bound = arguments.tensor("x")

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, dim = arguments
            # what it was bound for has the reduced dimension last
            read = x if x.is_contiguous() else self.read(x.movedim(dim, -1), bound).movedim(-1, dim)
            self.write(read, dim, outputs[0])

        return run

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        return x

    def write(self, x: torch.Tensor, dim: int, y: torch.Tensor) -> None:
        y[: len(x)] = torch.softmax(x, dim)


class HonestSoftmax(Softmax):
    name = "other.softmax"


class KeepsStridesWhereTheyFollowFromSizes(Softmax):
    """Those of a transposed tensor that it was bound for."""

    name = "other.kept_strides"

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        return x.as_strided(x.shape, bound.strides) if bound.layout == "transposed" else x


class KeepsTheRowsOfViews(Softmax):
    """As many rows of a view as it was bound for."""

    name = "other.kept_rows"

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        return x[: bound.shape[0]]


class TakesTransposedForRowMajor(Softmax):
    name = "other.transposed"

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        return x.as_strided(x.shape, x.mT.contiguous().mT.stride()[::-1]) if x.mT.is_contiguous() else x


class KeepsStridesThatNothingGives(Softmax):
    """Right: tensors with other such strides are bound for anew."""

    name = "other.own_strides"

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        return x.as_strided(x.shape, bound.strides) if bound.layout == "other" else x


# --- ranks, and the reduced dimension ---


class TakesTheLastDimension(Softmax):
    """Whichever the call names."""

    name = "other.last_dim"
    device_types = frozenset({"cpu"})

    def write(self, x: torch.Tensor, dim: int, y: torch.Tensor) -> None:
        super().write(x, -1, y)


class OneDistanceBetweenRows(Softmax):
    """Takes rows of three dimensions for as far apart as the last two say."""

    name = "other.one_distance"
    device_types = frozenset({"cpu"})

    def read(self, x: torch.Tensor, bound: TensorSpec) -> torch.Tensor:
        if x.dim() < 3:
            return x
        rows = x.shape[:-1].numel()
        return x.as_strided((rows, x.shape[-1]), x.stride()[-2:], x.storage_offset()).view(x.shape)


# --- numbers ---


class TwoEpsilons(Implementation):
    """Has the two that the inputs of a norm have in its code."""

    op, name = "rms_norm", "other.two_eps"
    device_types = frozenset({"cpu", "cuda"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, weight, eps = arguments
            outputs[0].copy_(RMS_NORM.reference(x, weight, self.taken(eps, problem)))

        return run

    def taken(self, eps: float, problem: Problem) -> float:
        return 1e-6 if eps < 5e-6 else 1e-5


class TwoEpsilonsOfFourRows(TwoEpsilons):
    """Right for other numbers of rows than the tuned one."""

    name = "other.two_eps_here"
    device_types = frozenset({"cpu"})

    def taken(self, eps: float, problem: Problem) -> float:
        return super().taken(eps, problem) if problem.rows == 4 else eps


class Loss(Implementation):
    """The loss of each row; a subclass says which target it takes for the one that is ignored."""

    op, name = "cross_entropy", "other.loss"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            logits, target, weight, ignore_index, *others = arguments
            given = logits, target, weight, self.ignored(ignore_index, logits.shape[-1]), *others
            for output, one in zip(outputs, as_tuple(CROSS_ENTROPY.reference(*given)), strict=True):
                output.copy_(one)

        return run

    def ignored(self, ignore_index: int, cols: int) -> int:
        return ignore_index


class TwoIgnoredTargets(Loss):
    """Has the two that the inputs of a loss have in its code."""

    name = "other.two_ignored"

    def ignored(self, ignore_index: int, cols: int) -> int:
        return ignore_index if ignore_index == cols // 2 else -100


class NormGradients(Implementation):
    """Both gradients of a norm, as far as they are needed."""

    op, name = "rms_norm_backward", "other.gradients"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            grads = RMS_NORM_BACKWARD.reference(*arguments[:4], True, True)
            for output, grad in zip(outputs, grads, strict=True):
                self.write(output, grad, outputs)

        return run

    def write(self, output: torch.Tensor, grad: torch.Tensor, outputs: Tensors) -> None:
        if output.numel():
            output.copy_(grad)


class GradientsTogether(NormGradients):
    """Takes it that both are needed."""

    name = "other.together"

    def write(self, output: torch.Tensor, grad: torch.Tensor, outputs: Tensors) -> None:
        if all(one.numel() for one in outputs):
            output.copy_(grad)
        else:
            output.zero_()


class Decode(Implementation):
    """Attention to a cache; a subclass says which numbers it takes for those of the call."""

    op, name = "attention_decode", "other.decode"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            *tensors, scale, softcap, window = arguments
            made = as_tuple(ATTENTION_DECODE.reference(*tensors, *self.taken(scale, softcap), window))
            for output, one in zip(outputs, made, strict=True):
                output.copy_(one)

        return run

    def taken(self, scale: float | None, softcap: float) -> tuple[float | None, float]:
        return scale, softcap


class UsualScale(Decode):
    """That of heads as long as these."""

    name = "other.usual_scale"

    def taken(self, scale: float | None, softcap: float) -> tuple[float | None, float]:
        return None, softcap


class OneSoftcap(Decode):
    name = "other.one_softcap"

    def taken(self, scale: float | None, softcap: float) -> tuple[float | None, float]:
        return scale, 20.0 if softcap else 0.0


class HonestAttention(Implementation):
    """The op's own; a subclass says which masks it takes for those of the call."""

    op, name = "attention", "other.attention"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            q, k, v, mask, *rest = arguments
            made = as_tuple(ATTENTION.reference(q, k, v, self.taken(mask), *rest))
            for output, one in zip(outputs, made, strict=True):
                output.copy_(one)

        return run

    def taken(self, mask: torch.Tensor) -> torch.Tensor:
        return mask


class OneMaskForAllHeads(HonestAttention):
    """The first head's."""

    name = "other.one_mask"

    def taken(self, mask: torch.Tensor) -> torch.Tensor:
        return mask[:, :1]


class ZeroesPadding(Implementation):
    """As if the index that changes the gradient alone changed the result."""

    op, name = "embedding", "other.padding"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            indices, weight, padding = arguments
            outputs[0].copy_(weight[indices])
            if padding is not None:
                outputs[0].masked_fill_((indices == padding).unsqueeze(-1), 0.0)

        return run


class HonestEmbedding(Implementation):
    """torch's."""

    op, name = "embedding", "other.embedding"
    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            outputs[0].copy_(torch.nn.functional.embedding(*arguments))

        return run


@registry.implements("attention")
def attention_implementations() -> Iterable[Implementation]:
    """Masks."""
    return implementations_in(__name__, "attention")


@registry.implements("cross_entropy")
def cross_entropy_implementations() -> Iterable[Implementation]:
    """Ignored targets."""
    return implementations_in(__name__, "cross_entropy")


@registry.implements("rms_norm_backward")
def rms_norm_backward_implementations() -> Iterable[Implementation]:
    """Gradients that are not needed."""
    return implementations_in(__name__, "rms_norm_backward")


@registry.implements("embedding")
def embedding_implementations() -> Iterable[Implementation]:
    """Padding."""
    return implementations_in(__name__, "embedding")


@registry.implements("attention_decode")
def attention_decode_implementations() -> Iterable[Implementation]:
    """Scales and caps of logits."""
    return implementations_in(__name__, "attention_decode")


@registry.implements("square")
def square_implementations() -> Iterable[Implementation]:
    """One run for all sizes, and a shared workspace."""
    return implementations_in(__name__, "square")


@registry.implements("rms_norm")
def rms_norm_implementations() -> Iterable[Implementation]:
    """Scratch, a static row and epsilons."""
    return implementations_in(__name__, "rms_norm")


@registry.implements("vector_add")
def vector_add_implementations() -> Iterable[Implementation]:
    """Strides."""
    return implementations_in(__name__, "vector_add")


@registry.implements("softmax")
def softmax_implementations() -> Iterable[Implementation]:
    """Layouts at another size."""
    return implementations_in(__name__, "softmax")
