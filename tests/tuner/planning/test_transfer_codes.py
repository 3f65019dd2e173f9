"""The codes that are verified before a winner answers for other sizes of a static dimension."""

from __future__ import annotations

import pytest

from registry.arguments.inputs import arguments_of
from registry.artifact import code_of
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.tuner.planning.transfer_codes import transfer_codes
from registry.tuner.planning.twin import of_few_elements
from registry.tuner.planning.variants import variants_at
from tests.tuner.planning.test_twin import CPU, H200

DIMS = {"rows": 8192, "cols": 4096, "dtype": "bfloat16"}


def test_each_code_is_looked_at_where_few_elements_take_it(catalog: Catalog) -> None:
    pytest.importorskip("triton")
    op, implementation = catalog.op("softmax"), catalog.implementation("softmax", "triton.row")
    problem = op.problem_of(DIMS)
    candidate = Candidate(implementation, implementation.default(problem, H200))
    codes, why = transfer_codes("cols", op, candidate, problem, H200)
    assert why == ""
    assert len({each.code for each in codes}) == len(codes) > 1
    for each in codes:
        assert [there.dims["cols"] for there in each.problems] == [each.low, each.high]
        assert each.code == code_of(each.variants)
        for there in each.problems:
            assert int(there.dims["rows"]) <= 64
            found = variants_at(op, candidate, there, arguments_of(op, there), H200)
            assert found is not None
            assert code_of(found) == each.code


def test_what_compiles_nothing_is_looked_at_at_the_size_that_was_tuned(catalog: Catalog) -> None:
    """It may choose what it runs by the size, and nobody sees it do so."""
    op, implementation = catalog.op("softmax"), catalog.implementation("softmax", "torch.native")
    problem = op.problem_of({**DIMS, "dtype": "float32"})
    (only,), _ = transfer_codes("cols", op, Candidate(implementation, {}), problem, CPU)
    assert only.code == ""
    assert [there.dims["rows"] for there in only.problems] == [8192, 8192]


def test_few_elements_keep_what_compilers_specialise_on(catalog: Catalog) -> None:
    op = catalog.op("softmax")
    rows = {rows: of_few_elements(op, op.problem_of({**DIMS, "rows": rows})).dims["rows"] for rows in (1, 48, 96, 1000)}
    assert rows == {1: 1, 48: 48, 96: 48, 1000: 1000}
    assert of_few_elements(op, op.problem_of({**DIMS, "cols": 262144})).dims["rows"] == 16
