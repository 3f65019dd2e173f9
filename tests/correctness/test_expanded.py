"""Expanded inputs: which tensors a layout expands, and what lies beside the elements that they repeat."""

from __future__ import annotations

import pytest
import torch

from registry.arguments.expansion import strides_with_repeats, without_repeats
from registry.contracts import ATTENTION_BACKWARD, FUSED_ADD_RMS_NORM, GROUPED_GEMM, SQUARE, VECTOR_ADD
from registry.correctness.bits import as_bits
from registry.correctness.bounds import Bounds
from registry.correctness.expanded import (
    EXPANDED,
    expanded_inputs,
    is_any_expanded,
    loose_bounds,
    reference_of_expanded,
)
from registry.correctness.poisoned_layouts import MARGIN, adds_nothing, laid_out_within, layouts_on
from registry.problem import TensorSpec

SIZES = {"batch": 2, "heads": 4, "kv_heads": 4, "q_len": 3, "kv_len": 5, "head_dim": 32}
FORM = {"causal": True, "mask": "none", "softcap": False, "span": False, "dtype": "float32"}
GRADIENTS = ATTENTION_BACKWARD.problem_of({**SIZES, **FORM})


def strides(layout: str) -> dict[str, tuple[int, ...]]:
    """The zero strides of each argument of attention's gradient that the layout expands."""
    values = ATTENTION_BACKWARD.draw(GRADIENTS, "normal", torch.Generator().manual_seed(0))
    expanded = expanded_inputs(ATTENTION_BACKWARD, values, layout)
    named = zip(ATTENTION_BACKWARD.parsed.names, expanded, strict=True)
    specs = {name: TensorSpec.of(value) for name, value in named if isinstance(value, torch.Tensor)}
    assert reference_of_expanded(ATTENTION_BACKWARD, expanded) is not None
    return {
        name: tuple(dim for dim, stride in enumerate(spec.strides) if stride == 0)
        for name, spec in specs.items()
        if spec.is_expanded
    }


def test_every_other_tensor_is_expanded_along_a_dimension_of_its_own() -> None:
    assert strides("expanded-dense") == {"grad_out": (0,), "k": (1,), "out": (2,)}
    assert strides("dense-expanded") == {"q": (0,), "v": (1,), "lse": (0,)}


def test_the_first_tensor_of_scalar_dense_is_one_element() -> None:
    assert strides("scalar-dense") == {"grad_out": (0, 1, 2, 3)}


def test_other_layouts_expand_nothing() -> None:
    assert strides("contiguous") == strides("strided") == {}


def test_what_is_mutated_and_integers_that_depend_on_each_other_are_not_expanded() -> None:
    rows = torch.randn(4, 8)
    x, residual, weight, *_ = expanded_inputs(
        FUSED_ADD_RMS_NORM, (rows, rows, torch.ones(8), 1e-6, 0.0), "scalar-dense"
    )
    assert x is residual is rows
    assert weight.stride() == (0,)
    problem = GROUPED_GEMM.problem_of(dict(GROUPED_GEMM.examples[0]))
    values = GROUPED_GEMM.draw(problem, "normal", torch.Generator().manual_seed(0))
    for layout in ("expanded-dense", "dense-expanded", "scalar-dense"):
        for value, was in zip(expanded_inputs(GROUPED_GEMM, values, layout), values, strict=True):
            assert value is was or value.is_floating_point()


def test_a_vector_is_expanded_as_a_scalar_alone() -> None:
    values = (torch.randn(7), torch.randn(7))
    assert not is_any_expanded(expanded_inputs(VECTOR_ADD, values, "expanded-dense"))
    x, y = expanded_inputs(VECTOR_ADD, values, "scalar-dense")
    assert (x.stride(), y.stride()) == ((0,), (1,))
    assert torch.equal(x, values[0][:1].expand(7))
    empty, single = torch.ones(0), torch.ones(1)
    assert not is_any_expanded((*expanded_inputs(SQUARE, (empty,), "scalar-dense"), single))


@pytest.mark.parametrize(
    ("shape", "dims", "strides"),
    [((2, 3, 4), (0,), (0, 4, 1)), ((2, 3, 4), (1,), (4, 0, 1)), ((2, 3), (0, 1), (0, 0)), ((5,), (0,), (0,))],
)
def test_an_expanded_copy_repeats_its_elements_and_has_poison_where_dense_ones_would_lie(
    shape: tuple[int, ...], dims: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    once = torch.arange(1.0, 25.0)[: torch.Size(shape).numel()].view(shape)
    for dim in dims:
        once = once.narrow(dim, 0, 1)
    x = once.expand(shape)
    assert torch.equal(without_repeats(x), once)
    assert strides_with_repeats(x) == strides
    found = laid_out_within(x, "expanded-dense")
    assert torch.equal(found.tensor, x)
    assert found.tensor.stride() == strides
    assert bool(found.untouched())
    assert found.base.numel() == x.numel() + 2 * MARGIN
    dense = found.base[MARGIN : MARGIN + x.numel()]
    assert int(dense.isnan().sum()) > 0
    as_bits(dense)[-1] += 1
    assert not bool(found.untouched())


def test_a_layout_that_expands_no_tensor_adds_nothing() -> None:
    dense, expanded = torch.ones(2, 3), torch.ones(1, 3).expand(2, 3)
    assert adds_nothing("expanded-dense", [TensorSpec.of(dense)])
    assert not adds_nothing("expanded-dense", [TensorSpec.of(dense), TensorSpec.of(expanded)])


def test_inputs_of_which_the_op_makes_no_sense_have_no_reference() -> None:
    assert reference_of_expanded(SQUARE, (torch.full((3,), torch.inf),)) is None
    assert reference_of_expanded(VECTOR_ADD, (torch.ones(2), torch.ones(3))) is None


def test_bounds_are_as_wide_as_a_part_of_the_largest_result() -> None:
    dense = Bounds(torch.tensor([-65.0, 0.0]), torch.tensor([-63.0, 2.0]), has_nan=False)
    (found,) = loose_bounds([torch.tensor([0.0, 1.0], dtype=torch.float64)], [dense])
    assert found.low.dtype == torch.float32
    assert not found.has_nan
    by = 2 + 63 / 64
    assert torch.allclose(found.high, torch.tensor([by, 1 + by]))
    assert torch.allclose(found.low, torch.tensor([-by, 1 - by]))
    for wrong in (torch.nan, 2 + by, torch.inf):
        assert not bool(found.holding(torch.tensor([0.0, wrong])))


def test_results_that_are_not_floating_have_to_be_equal() -> None:
    index = torch.tensor([3, 4])
    (found,) = loose_bounds([torch.tensor([1, 2])], [Bounds(index, index, has_nan=False)])
    assert found.are_exact
    assert bool(found.holding(torch.tensor([1, 2])))


def test_no_inputs_are_expanded_on_a_gpu() -> None:
    assert set(layouts_on("cpu")) > EXPANDED
    assert set(layouts_on("cuda")) == set(layouts_on("cpu")) - EXPANDED
