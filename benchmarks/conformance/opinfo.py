"""PyTorch's OpInfo samples, their gradients and their wrong inputs, against the registry's ops.

OpInfo, in ``torch.testing._internal``, is what PyTorch tests its own operators with, by every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from registry import RegistryError

from .outcomes import Counts, Outcome
from .torch_calls import CALLS, WITHOUT_GRADIENT

# the tolerances of the reference's own roundings: torch's kernels on a CPU round halves more than once
_LOOSE = {torch.bfloat16: (1.6e-2, 1.6e-2), torch.float16: (2e-3, 2e-3)}


def infos(names: Sequence[str] = ()) -> list[Any]:
    """The OpInfos of ops that ``CALLS`` maps, or of those named."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if info.name in CALLS and (not names or info.name in names)]


def count(info: Any, dtype: torch.dtype, device: str = "cpu") -> dict[str, Counts]:
    """The counts of an OpInfo's samples in a dtype: outputs, gradients beside torch's, and in float64 differences."""
    counts = {name: Counts() for name in ("forward", "backward", "gradcheck")}
    learns = info.supports_autograd and dtype.is_floating_point and info.name not in WITHOUT_GRADIENT
    for sample in info.reference_inputs(device, dtype, requires_grad=learns):
        outcome, reason = judged(info, sample)
        counts["forward"].add(outcome, reason)
        if learns and outcome is Outcome.PASSED:
            counts["backward"].add(*judged_gradient(info, sample))
    # reference inputs hold numbers so large that a difference has no digits left
    for sample in info.sample_inputs(device, dtype, requires_grad=True) if dtype == torch.float64 and learns else ():
        if judged(info, sample)[0] is Outcome.PASSED:
            counts["gradcheck"].add(*judged_differences(info, sample))
    return counts


def count_errors(info: Any) -> Counts:
    """The counts of an OpInfo's wrong inputs: both refuse, or the registry accepts what torch refuses (wrong)."""
    counts = Counts()
    if info.error_inputs_func is None:
        return counts
    for case in info.error_inputs("cpu"):
        sample = case.sample_input
        try:
            _ours(info, sample)
        except RegistryError:
            counts.add(Outcome.BOTH_REFUSE)
        except Exception as fault:
            counts.add(Outcome.UNCLEAR, _told(info, fault))
        else:
            counts.add(Outcome.WRONG, f"{info.name}: accepts what torch refuses: {case.error_regex:.120}")
    return counts


def judged(info: Any, sample: Any) -> tuple[Outcome, str]:
    """What became of one sample's outputs, and why."""
    try:
        expected = _theirs(info, sample)
    except Exception:
        expected = None
    try:
        ours = _ours(info, sample)
    except RegistryError as fault:
        return (Outcome.BOTH_REFUSE, "") if expected is None else (Outcome.CLEAR_ERROR, _told(info, fault))
    except Exception as fault:
        return Outcome.UNCLEAR, _told(info, fault)
    if expected is None:
        return Outcome.WRONG, f"{info.name}: accepts a sample that torch refuses"
    return _compared(info, ours, expected, lambda: _theirs(info, _in_float64(sample)))


def judged_gradient(info: Any, sample: Any) -> tuple[Outcome, str]:
    """What became of one sample's gradients beside torch's own."""
    leaves = _leaves(sample)
    try:
        ours, expected = (_gradients(function(info, sample), leaves) for function in (_ours, _theirs))
    except RegistryError as fault:
        return Outcome.CLEAR_ERROR, _told(info, fault)
    except Exception as fault:
        return Outcome.UNCLEAR, _told(info, fault)
    wide = _in_float64(sample)
    return _compared(info, ours, expected, lambda: _gradients(_theirs(info, wide), _leaves(wide)))


def judged_differences(info: Any, sample: Any) -> tuple[Outcome, str]:
    """What became of one sample's gradients beside finite differences of the outputs, by gradcheck."""
    try:
        _check_differences(info, sample)
    except RegistryError as fault:
        return Outcome.CLEAR_ERROR, _told(info, fault)
    except GradcheckError as fault:
        return Outcome.WRONG, _told(info, fault)
    except Exception as fault:
        return Outcome.UNCLEAR, _told(info, fault)
    return Outcome.PASSED, ""


def _ours(info: Any, sample: Any) -> Any:
    return CALLS[info.name](sample.input, *sample.args, **sample.kwargs)


def _theirs(info: Any, sample: Any) -> Any:
    return info.op(sample.input, *sample.args, **sample.kwargs)


def _gradients(output: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of a weighted sum of the output, zeros for what it does not depend on."""
    if not output.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float64).to(output.dtype).view(output.shape)
    grads = torch.autograd.grad(output, leaves, weights, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


def _check_differences(info: Any, sample: Any) -> None:
    """Raise GradcheckError unless the gradients are the finite differences of the outputs."""
    values = _values(sample)
    places = [place for place, one in enumerate(values) if isinstance(one, torch.Tensor) and one.requires_grad]

    def function(*changed: torch.Tensor) -> Any:
        given = list(values)
        for place, value in zip(places, changed, strict=True):
            given[place] = value
        count = 1 + len(sample.args)
        return CALLS[info.name](*given[:count], **dict(zip(sample.kwargs, given[count:], strict=True)))

    if places and all(values[place].numel() for place in places):
        gradcheck(function, [values[place] for place in places], fast_mode=True, check_undefined_grad=False)


def _values(sample: Any) -> list[Any]:
    return [sample.input, *sample.args, *sample.kwargs.values()]


def _leaves(sample: Any) -> list[torch.Tensor]:
    return [value for value in _values(sample) if isinstance(value, torch.Tensor) and value.requires_grad]


def _in_float64(sample: Any) -> Any:
    def widened(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    return sample.transform(widened)


def _compared(info: Any, ours: Any, expected: Any, exact: Callable[[], Any]) -> tuple[Outcome, str]:
    """Passed if ours are torch's results, or what torch computes in float64: torch's own roundings may be larger."""
    fault = _difference(ours, expected)
    if fault and _dtypes(ours) == _dtypes(expected):
        rounded = [one.to(of.dtype) for one, of in zip(_listed(exact()), _listed(ours), strict=True)]
        fault = _difference(ours, rounded)
    return (Outcome.WRONG, f"{info.name}: {fault}") if fault else (Outcome.PASSED, "")


def _difference(ours: Any, expected: Any) -> str:
    """How the results differ, by the usual tolerances of their dtypes; "" for equal ones."""
    ours, expected = _listed(ours), _listed(expected)
    rtol, atol = _LOOSE.get(ours[0].dtype, (None, None)) if ours else (None, None)
    try:
        torch.testing.assert_close(ours, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as fault:
        return " ".join(str(fault).split())[:200]
    return ""


def _listed(outputs: Any) -> list[torch.Tensor]:
    return outputs if isinstance(outputs, list) else [outputs]


def _dtypes(outputs: Any) -> list[torch.dtype]:
    return [one.dtype for one in _listed(outputs)]


def _told(info: Any, fault: Exception) -> str:
    """The first line of an error, which must name the op and the argument."""
    kind = "" if isinstance(fault, RegistryError) else f"{type(fault).__name__}: "
    return f"{info.name}: {kind}{str(fault).splitlines()[0] if str(fault) else ''}"


Counted = dict[str, Counts]


def run_opinfo(
    names: Sequence[str] = (), dtypes: Sequence[torch.dtype] = (), report: Callable[[str], None] = print
) -> Counted:
    """The counts by OpInfo, dtype and direction, ``softmax.with_dtype bfloat16 backward``."""
    with warnings.catch_warnings():
        # torch's, of samples in experimental dtypes
        warnings.simplefilter("ignore")
        return _counted(infos(names), dtypes, report)


def _counted(found: Sequence[Any], dtypes: Sequence[torch.dtype], report: Callable[[str], None]) -> Counted:
    counted: Counted = {}
    for info in found:
        name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        for dtype in sorted(info.supported_dtypes("cpu"), key=str):
            if dtypes and dtype not in dtypes:
                continue
            short = str(dtype).removeprefix("torch.")
            counted |= {f"{name} {short} {each}": counts for each, counts in count(info, dtype).items()}
        counted[f"{name} wrong inputs"] = count_errors(info)
        report(f"{name}: {sum(counts.total for key, counts in counted.items() if key.startswith(f'{name} '))} cases")
    return {key: counts for key, counts in counted.items() if counts.total}
