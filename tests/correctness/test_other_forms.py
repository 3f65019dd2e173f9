"""Calls of one problem in other forms: which ops have them, and what is different in each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from registry.arguments.schema import tensors_in
from registry.contract import Op
from registry.contracts import (
    ATTENTION,
    ATTENTION_BACKWARD,
    EMBEDDING,
    GROUPED_GEMM,
    KV_CACHE_APPEND,
    ROTARY_EMBEDDING,
    SOFTMAX,
    SQUARE,
    VECTOR_ADD,
)
from registry.correctness.other_forms import AS_GIVEN, other_forms

SCALED = {"tokens": 9, "kv_heads": 2, "head_dim": 4, "block_size": 4, "kv_dtype": "float8_e4m3fn", "dtype": "float32"}


def drawn(op: Op, dims: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values of the op's inputs by name, and those of each form by its name."""
    problem = op.problem_of(dims or dict(op.examples[1]))
    values = op.draw(problem, op.kinds[0], torch.Generator().manual_seed(1))
    named = {which: dict(zip(op.parsed.names, call, strict=True)) for which, call in other_forms(op, problem, values)}
    return dict(zip(op.parsed.names, values, strict=True)), named


def test_integers_have_the_other_width_where_the_op_takes_it() -> None:
    for op, name in ((EMBEDDING, "indices"), (KV_CACHE_APPEND, "slot_mapping"), (GROUPED_GEMM, "offsets")):
        values, forms = drawn(op)
        other = forms["integers of the other width"][name]
        assert {other.dtype, values[name].dtype} == {torch.int32, torch.int64}
        assert other.equal(values[name].to(other.dtype))


def test_what_the_reference_does_not_take_is_no_call_of_the_op() -> None:
    def gathered(indices: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
        if indices.dtype != torch.int64:
            raise TypeError("indices of 64 bits")
        return weight[indices]

    values, forms = drawn(replace(EMBEDDING, reference=gathered))
    assert values["indices"].dtype == torch.int64
    assert "integers of the other width" not in forms
    assert "absent padding_idx" in forms


def test_tensors_have_dtypes_of_their_own_where_the_op_mixes_them() -> None:
    _, forms = drawn(VECTOR_ADD, {"n": 36, "dtype": "float32"})
    assert (forms["float16 x"]["x"].dtype, forms["float16 x"]["y"].dtype) == (torch.float16, torch.float32)
    assert forms["float16 y"]["y"].dtype == torch.float16
    _, forms = drawn(ROTARY_EMBEDDING, {**ROTARY_EMBEDDING.examples[0], "dtype": "bfloat16"})
    assert forms["float32 cos_sin_cache"]["cos_sin_cache"].dtype == torch.float32


def test_optional_arguments_are_left_out_where_no_dimension_tells_of_them() -> None:
    assert drawn(EMBEDDING)[1]["absent padding_idx"]["padding_idx"] is None
    _, forms = drawn(ATTENTION, {**ATTENTION.examples[1], "mask": "bool"})
    assert forms["absent scale"]["scale"] is None
    assert "absent mask" not in forms


def test_scales_have_no_dimension_and_rows_may_follow_that_are_padding() -> None:
    values, forms = drawn(KV_CACHE_APPEND, SCALED)
    assert forms["scalar k_scale"]["k_scale"].dim() == 0
    padded = forms["padded"]
    assert len(padded["key"]) == len(padded["value"]) == len(values["slot_mapping"]) + 2
    assert bool(padded["key"][-2:].isnan().all())
    assert "padded" not in drawn(VECTOR_ADD)[1]


def test_tensors_fill_their_memory_and_are_not_row_major() -> None:
    _, forms = drawn(SOFTMAX, {"rows": 6, "cols": 5, "dtype": "float32"})
    x = forms["plain transposed"]["x"]
    assert x.stride() == (1, 6)
    _, forms = drawn(SQUARE, {"n": 36, "dtype": "float32"})
    assert forms["plain transposed"]["x"].stride() == (2,)
    matrix = forms["plain split transposed"]["x"]
    assert (matrix.shape, matrix.stride()) == ((4, 9), (1, 4))
    for one in (x, matrix):
        assert one.storage_offset() == 0
        assert one.untyped_storage().nbytes() == one.nbytes


def test_tensors_of_one_shape_lie_in_one_place() -> None:
    _, forms = drawn(VECTOR_ADD, {"n": 36, "dtype": "float32"})
    assert forms["repeated"]["x"] is forms["repeated"]["y"]
    x, y = forms["overlapping"]["x"], forms["overlapping"]["y"]
    assert x.data_ptr() == y.data_ptr()
    assert (x.stride(), y.stride()) == ((1,), (2,))
    assert not x.equal(y)
    # gradients are of tensors that were made from each other, and what is written to lies apart
    assert not {"repeated", "overlapping"} & drawn(ATTENTION_BACKWARD)[1].keys()
    assert not AS_GIVEN & drawn(KV_CACHE_APPEND)[1].keys()


def test_weights_stay_where_they_are_in_one_place() -> None:
    values, forms = drawn(GROUPED_GEMM)
    assert forms.keys() == {"integers of the other width", "plain transposed"}
    assert all(
        one.equal(other)
        for one, other in zip(
            tensors_in(tuple(values.values())), tensors_in(tuple(forms["plain transposed"].values())), strict=True
        )
    )
