"""Every class and function of the installed transformers that has a mark of the mapping: a layer computes what it does.

Their source runs alone: to import the files of all models takes a minute, which thorough tests do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ..transformers.op_counts import OpCounts
from .marks import Marked, marked_sources, top_level

if TYPE_CHECKING:  # see late_imports
    import kernels
    from kernels import Mode, kernelize, use_kernel_mapping
    from transformers import activations

    from registry.integrations.hf_kernels import kernel_mapping
    from registry.integrations.hf_kernels.proved_forms import gates_norm, norm_offset, rotates_halves

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

NORMS = ("RMSNorm", "RMSNormZeroCentered")
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""The largest error by dtype, relative to the largest result."""


def computed(module: torch.nn.Module, *given: Any) -> tuple[Any, Any]:
    """What a marked module computes, and what it does once it is kernelized."""
    vars(module).pop("forward", None)
    expected = module(*given)
    with use_kernel_mapping(kernel_mapping(), inherit_mapping=False):
        kernelize(module, mode=Mode.INFERENCE, device="cpu")
    assert "forward" in vars(module)
    return expected, module(*given)


def check_norm(norm: Any, dtype: torch.dtype, name: str) -> None:
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    module = norm(32).to(dtype)
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
    # of another dtype than the weight's, too
    for given in (x.to(dtype), x):
        expected, found = computed(module, given)
        assert found.dtype is expected.dtype, name
        assert (found - expected).abs().max() <= ALLOWED[dtype] * expected.abs().max(), name


def executed(one: Marked) -> Any:
    """A class or function of a file of transformers, marked, made of its source and of what that calls."""
    text = one.file.read_text(encoding="utf-8")
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "ACT2FN": activations.ACT2FN}
    for called in ("rotate_half", "_apply_rotary_emb"):
        if f"{called}(" in one.source:
            exec("from __future__ import annotations\n" + top_level(text, f"def {called}"), names)
    exec("from __future__ import annotations\n" + one.source, names)
    return kernels.use_kernel_forward_from_hub(one.mark)(names[one.name])


def distinct(*marks: str) -> list[Marked]:
    """One for each text, without its name, of the classes and functions with these marks."""
    found = {one.source.replace(one.name, ""): one for one in marked_sources(*marks)}
    return list(found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_marked_norm_computes_what_its_class_does(dtype: torch.dtype) -> None:
    norms = distinct(*NORMS)
    assert {one.mark for one in norms} == set(NORMS)
    for one in norms:
        norm = executed(one)
        check_norm(norm, dtype, one.name)
        eps = "eps" if one.mark == "RMSNormZeroCentered" else "variance_epsilon"
        # and by the op
        assert norm_offset(norm, eps, 32) == (1.0 if one.mark == "RMSNormZeroCentered" else 0.0), one.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_marked_gated_norm_computes_what_its_class_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, 2, 3, 32, generator=generator).to(dtype)
    for one in distinct("RMSNormGated"):
        module = executed(one)(32).to(dtype)
        torch.nn.init.normal_(module.weight, generator=generator)
        for activation in (module.activation, "relu"):
            module.activation = activation
            expected, found = computed(module, x, gate)
            assert found.dtype is expected.dtype, one.name
            assert (found - expected).abs().max() <= ALLOWED[dtype] * expected.abs().max(), one.name
            by_op = gates_norm(type(module), "variance_epsilon", 32, activation)
            assert by_op is (activation != "relu"), one.name


def test_a_program_of_sizes_and_an_epsilon_that_change_calls_the_op() -> None:
    """With dynamic=True torch.compile knows the epsilon as a symbol."""
    one = executed(next(iter(distinct("RMSNormGated"))))(32, eps=0.01)
    x, counts = torch.randn(2, 5, 32), OpCounts()
    expected, _ = computed(one, x, x)
    torch._dynamo.reset()
    found = torch.compile(one, backend=counts, fullgraph=True, dynamic=True)(x, x)
    assert torch.allclose(found, expected, atol=1e-5)
    assert counts.graphs == [{"rms_norm": 1}]


def test_most_marked_norms_are_one_text() -> None:
    assert len(list(marked_sources(*NORMS))) > 100


def test_every_marked_rotation_computes_what_its_function_does() -> None:
    functions, by_op = distinct("rotary_pos_emb"), 0
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 5, 16, generator=generator) for heads in (4, 2))
    half = torch.randn(2, 5, 8, generator=generator)
    for one in functions:
        module = executed(one)
        # angles of whole heads, of unequal halves, and of half a head, which some of the functions take
        for angles in (torch.cat((half, half), -1), torch.randn(2, 5, 16, generator=generator), half):
            given = q, k, angles.cos(), angles.sin()
            try:
                module(*given)
            except RuntimeError:
                continue
            expected, found = computed(module, *given)
            assert all(torch.allclose(*both, atol=1e-6) for both in zip(expected, found, strict=True)), one.file.name
        by_op += rotates_halves(type(module))
    assert by_op >= 4


def test_angles_that_change_in_place_are_read_again() -> None:
    rotate = executed(next(one for one in distinct("rotary_pos_emb") if "float" not in one.source))
    q, k, half = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 5, 8)
    angles = torch.cat((half, half), -1)
    cos, sin = angles.cos(), angles.sin()
    with torch.no_grad():
        computed(rotate, q, k, cos, sin)
    # made without gradients, then needed with them
    for change in (q.requires_grad_, lambda: cos.mul_(2), sin.normal_):
        change()  # type: ignore[no-untyped-call]
        both = type(rotate).forward(rotate, q, k, cos, sin), rotate(q, k, cos, sin)
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*both, strict=True))


def test_queries_and_keys_that_angles_are_spread_over_rotate_as_by_the_function() -> None:
    rotate = executed(next(one for one in distinct("rotary_pos_emb") if "float" not in one.source))
    q, k, half = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 5, 8)
    angles = torch.cat((half, half), -1)
    for given in (
        (q, k, angles[:, :1]),
        (q, k, angles[:1, :1]),
        (q[:, :, :1], k, angles),
        (q, k[:1], angles),
        (q[:1], k, angles[:1]),
        (q, k[:, :, :1], angles),
        (q[:, :, :0], k[:, :, :0], angles[:, :0]),
    ):
        expected, found = computed(rotate, *given[:2], given[2].cos(), given[2].sin())
        assert all(torch.equal(*both) for both in zip(expected, found, strict=True))


@pytest.mark.parametrize("arguments", [{}, {"unlike": True}])
def test_gelus_compute_what_their_classes_do(arguments: dict[str, bool]) -> None:
    x = torch.linspace(-5, 5, 64).view(2, 32)
    for one in marked_sources("GeLU", "GeluTanh", "NewGELU", "FastGELU"):
        kind = kernels.use_kernel_forward_from_hub(one.mark)(type(one.name, (getattr(activations, one.name),), {}))
        module = kind()
        if arguments and hasattr(module, "act"):
            module.act = torch.nn.functional.softplus
        expected, found = computed(module, x)
        assert torch.allclose(expected, found, atol=1e-5), one.name


class _Odd(torch.nn.Module):
    """A norm with a mark that does not fit what it computes."""

    def __init__(self, scale: float | None = 2.0) -> None:
        super().__init__()
        self.weight = None if scale is None else torch.nn.Parameter(torch.full((8,), 3.0))
        self.eps, self.scale = 1e-6, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return y if self.scale is None or self.weight is None else y * self.weight * self.scale


@pytest.mark.parametrize("scale", [2.0, None])
def test_a_marked_class_that_computes_something_else_computes_for_itself(scale: float | None) -> None:
    odd = kernels.use_kernel_forward_from_hub("RMSNorm")(type("Odd", (_Odd,), {}))(scale)
    expected, found = computed(odd, torch.randn(2, 8))
    assert torch.equal(expected, found)


@pytest.mark.thorough
def test_every_marked_norm_of_transformers_files_computes_what_it_did() -> None:
    """In the classes of the imported files, whatever their decorators have made of them."""
    for one in marked_sources(*NORMS):
        file = importlib.import_module(f"transformers.models.{one.file.parent.name}.{one.file.stem}")
        own = getattr(file, one.name)
        norm = type(one.name, (own,), {"kernel_layer_name": one.mark})
        for dtype in (torch.float32, torch.bfloat16):
            check_norm(norm, dtype, one.name)
