"""Sizes of a shapes file that no machine could hold: ``tune --dry-run`` refuses or skips them at once, and says why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from registry.contract import Op
from registry.contracts import BOX
from registry.contracts.attention.decode_lengths import lengths_of, pairs_seen
from registry.contracts.decoder.embedding_indices import rows_met
from registry.contracts.segments import MOST_PARTS
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.errors import ShapesFileError
from registry.problem import Problem, Value
from registry.tuner.planning.compiling import with_launches_checked
from registry.tuner.planning.problems import plan
from registry.tuner.planning.ranges import represented
from registry.tuner.shapes.shapes import read_shapes

CPU = Device.of("cpu")
LIMIT_S = 3.0
PARTS = {
    "attention_decode": "batch", "mla_decode": "batch", "attention_varlen": "sequences", "fused_moe": "experts",
    "grouped_gemm": "experts", "grouped_gemm_int4": "experts", "grouped_scaled_mm": "experts",
}  # fmt: skip
"""Dimensions of which the host makes a list."""


def told(folder: Path, catalog: Catalog, op: str, dims: Mapping[str, Value]) -> str:
    """The message or the reason of a skipped plan, "" for a plan, of a file with one problem, as a dry run finds it."""
    file = folder / "shapes.yaml"
    file.write_text(yaml.safe_dump({op: [dict(dims)]}))
    start = time.monotonic()
    try:
        shapes = read_shapes(file, catalog)
        wanted = represented(shapes.all, shapes.counts, catalog.op)
        (planned,) = map(with_launches_checked, plan(wanted.problems, catalog, CPU))
        found = planned.skipped
    except ShapesFileError as fault:
        found = fault.message
    assert time.monotonic() - start < LIMIT_S, f"{op} {dims}"
    return found


def forms(op: Op) -> Iterator[Mapping[str, Value]]:
    """The first example with each distribution of data."""
    first = op.examples[0]
    yield first
    for name, values in op.distributions.items():
        yield from ({**first, name: value} for value in values if value != first.get(name))


@pytest.mark.parametrize(
    "size", [2**63 - 1, *(pytest.param(size, marks=pytest.mark.thorough) for size in (2**31, 10**11, 2**48))]
)
def test_every_dimension_of_every_op_may_be_impossible(tmp_path: Path, size: int) -> None:
    catalog = Catalog()
    for name, op in catalog.ops().items():
        for dims in forms(op):
            for size_name in [each for each, value in dims.items() if type(value) is int]:
                found = told(tmp_path, catalog, name, {**dims, size_name: size})
                assert found not in {"", "no inputs can be made of it: "}, f"{name} {size_name}"


@pytest.mark.parametrize("op", PARTS)
@pytest.mark.few(2)
def test_as_many_parts_as_are_allowed_are_planned_at_once(tmp_path: Path, op: str) -> None:
    catalog, name = Catalog(), PARTS[op]
    for dims in forms(catalog.op(op)):
        assert "a list of them" not in told(tmp_path, catalog, op, {**dims, name: MOST_PARTS})
        assert "a list of them" in told(tmp_path, catalog, op, {**dims, name: MOST_PARTS + 1})


@pytest.mark.parametrize("lengths", ["full", "uniform", "skewed"])
def test_the_pairs_of_a_decode_are_those_that_its_tokens_see(lengths: str) -> None:
    (op,) = (op for op in BOX if op.name == "attention_decode")
    for span in (False, 1, 5, 100):
        for rows, keys in ((1, 1), (1, 9), (4, 9), (9, 9), (12, 9)):
            dims = {**op.examples[0], "batch": 3, "q_len": rows, "kv_len": keys, "span": span, "lengths": lengths}
            problem = Problem(op.name, dims)
            most = span or keys
            seen = (min(length - row, most) for length in lengths_of(problem) for row in range(rows) if row < length)
            assert pairs_seen(problem) == sum(seen)


@pytest.mark.parametrize("frequency", ["uniform", "skewed"])
def test_few_or_all_rows_of_a_table_are_met(frequency: str) -> None:
    for vocabulary in (1, 2, 1000, 2**20, 2**21, 10**11, 2**48):
        assert rows_met(1, vocabulary, frequency) == 1
        many = rows_met(2**60, vocabulary, frequency)
        assert many == pytest.approx(vocabulary, rel=1e-6)
