"""On a GPU: which other calls an op takes is found out without an index beyond a table, and all are right."""

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
from registry.correctness.other_views import LAYOUTS_OF_VIEWS, other_views
from registry.device import Device
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.folding import Place
from registry.testing.other_calls import other_call_faults
from registry.testing.reports import Notes, guarded

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


@pytest.mark.parametrize("op", BOX, ids=lambda op: op.name)
def test_every_implementation_is_right_in_every_other_call(catalog: Catalog, op: Op) -> None:
    device, notes = Device.of("cuda"), Notes(op.name)
    # Inductor compiles for each form anew, which takes seconds
    tried = [one for one in catalog.implementations(op.name) if one.name != "torch.compile"]
    for implementation in tried:
        for dims in spread(op.examples, 4) if "cuda" in implementation.device_types else ():
            problem = op.problem_of(dict(dims))
            if not refusals(implementation, problem, device):
                candidate = Candidate(implementation, implementation.default(problem, device))
                place = Place(f"{problem} {candidate}", str(problem), str(candidate))
                faults = other_call_faults(notes, op, candidate, problem, device, LAYOUTS_OF_VIEWS)
                notes.add(place, guarded(faults, implementation))
    assert notes.report().ok
