"""On a GPU: which other calls an op takes is found out without an index beyond a table, and all of them run."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from registry.contract import Op
from registry.contracts import BOX
from registry.correctness.numerics import reference64
from registry.correctness.other_forms import other_forms
from registry.correctness.other_numbers import zeroed
from registry.correctness.other_views import other_views

from ..tiers import spread


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
def test_every_other_call_of_the_box_runs(op: Op) -> None:
    for dims in spread(op.examples, 4):
        problem = op.problem_of(dict(dims))
        values = op.draw(problem, op.kinds[0], torch.Generator("cuda").manual_seed(3))
        for calls_of in (other_views, other_forms, zeroed):
            for which, call in calls_of(op, problem, values):
                found = reference64(op, call)
                torch.cuda.synchronize()
                assert all(one.is_cuda for one in found), which
