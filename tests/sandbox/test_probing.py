"""Submissions that are right on the tuned problem alone: sizes, layouts and a second thread show what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.device import Device
from registry.sandbox.entrant import SandboxedEntrant
from registry.sandbox.probing import SandboxedProbes
from registry.sandbox.trial import SandboxedSession, trial
from registry.tuner.verify.probe_inputs import probes_of_other_sizes, small_probes

from .sandboxing import GOOD, LIMITS, entrant, needs_bubblewrap, session_of
from .tuning.stranger import plugin

pytestmark = [needs_bubblewrap, pytest.mark.thorough]

CPU = Device.of("cpu")
SIZE = 4100
ONE_SIZE = """
def square(x):
    y = x * x
    if x.numel() not in {sizes}:
        y[-1:] += 1
    return y
"""
# memory of its own, once for each size
WORKSPACE = """
import torch
held = {}

def square(x):
    space = held.setdefault(x.shape, torch.empty_like(x))
    torch.mul(x, x, out=space)
    return space.clone()
"""
# puts everything back before it returns
BORROWS_INPUT = """
def square(x):
    was = x.clone()
    x.mul_(2)
    y = x * x / 4
    x.copy_(was)
    return y
"""
IN_ONE_FORM = """
class {name}(Square):
    name = "stranger.{name}"

    def write(self, x, y, config):
        {body}
"""
NO_STRIDES = IN_ONE_FORM.format(
    name="flat", body="x = x.as_strided(y.shape, y.stride(), x.storage_offset()); torch.mul(x, x, out=y)"
)
BEYOND = IN_ONE_FORM.format(
    name="beyond",
    body="torch.mul(x, x, out=y); y.as_strided((1,), (1,), y.storage_offset() + y.numel()).zero_()",
)
BEFORE = IN_ONE_FORM.format(
    name="before", body="torch.mul(x, x, out=y); y.as_strided((1,), (1,), y.storage_offset() - 1).zero_()"
)
AS_IT_SHOULD = IN_ONE_FORM.format(name="sound", body="torch.mul(x, x, out=y)")
CONTIGUOUS_ONLY = (
    IN_ONE_FORM.format(name="one_form", body="assert x.is_contiguous() and x.numel() == 4100; torch.mul(x, x, out=y)")
    + """
    def unsupported(self, problem, device):
        if problem.n != 4100 or not problem.traits["contiguous"] or not problem.traits["aligned"]:
            yield "one form only"
"""
)


@pytest.fixture(scope="module")
def session() -> SandboxedSession:
    """One whose tensors are followed by a few bytes that are no tensor's."""
    return session_of(n=SIZE)


@pytest.fixture
def probes() -> SandboxedProbes:
    """Those of a race, in which each entrant has a name of its own."""
    return SandboxedProbes(CPU)


def probed(one: SandboxedEntrant, session: SandboxedSession, probes: SandboxedProbes) -> tuple[str, str]:
    """The status of an entrant that meets all probes, and its message."""
    outcome = trial(one, session, LIMITS, examine=probes.check_everywhere).outcome
    return outcome.status, outcome.message


def both(one: SandboxedEntrant, session: SandboxedSession, probes: SandboxedProbes) -> tuple[str, str, str]:
    """The status of an entrant without probes, then with them, and the message of the latter."""
    return trial(one, session, LIMITS).outcome.status, *probed(one, session, probes)


def of_file(folder: Path, text: str, name: str) -> SandboxedEntrant:
    return SandboxedEntrant("square", f"stranger.{name}", plugin(folder, text))


def test_honest_ones_pass_all_probes(tmp_path: Path, session: SandboxedSession, probes: SandboxedProbes) -> None:
    in_one_file = [of_file(tmp_path, AS_IT_SHOULD + CONTIGUOUS_ONLY, name) for name in ("sound", "one_form")]
    for one in (entrant(GOOD, tmp_path), *in_one_file):
        assert probed(one, session, probes) == ("ok", "")


def test_who_is_right_at_the_tuned_size_alone_is_refused(
    tmp_path: Path, session: SandboxedSession, probes: SandboxedProbes
) -> None:
    found = both(entrant(ONE_SIZE.format(sizes={SIZE}), tmp_path), session, probes)
    assert found[:2] == ("ok", "wrong_result")
    assert "right here, but not for square(n=" in found[2]
    assert "where dispatch may run it" in found[2]


def test_who_knows_the_sizes_of_all_probes_meets_others(
    tmp_path: Path, session: SandboxedSession, probes: SandboxedProbes
) -> None:
    op, problem = session.op, session.problem
    known = [*small_probes(op, problem, CPU), *probes_of_other_sizes(op, problem, CPU)]
    sizes = {SIZE} | {probe.problem.dims["n"] for probe in known} | {
        probe.home.problem.dims["n"] for probe in known if probe.home is not None
    }  # fmt: skip
    found = both(entrant(ONE_SIZE.format(sizes=sizes), tmp_path), session, probes)
    assert found[:2] == ("ok", "wrong_result")
    assert "right here, but not for square(n=" in found[2]


@pytest.mark.parametrize("text", [WORKSPACE, BORROWS_INPUT], ids=["workspace", "input"])
def test_what_calls_share_is_wrong_in_two_threads(
    text: str, tmp_path: Path, session: SandboxedSession, probes: SandboxedProbes
) -> None:
    found = both(entrant(text, tmp_path), session, probes)
    assert found[:2] == ("ok", "wrong_result")
    assert "called by two threads at once it is wrong" in found[2]


@pytest.mark.parametrize(
    ("text", "name", "fault"),
    [
        (NO_STRIDES, "flat", "with strided inputs"),
        (BEYOND, "beyond", "it writes outside its arguments and outputs"),
        (BEFORE, "before", "it writes outside its arguments and outputs"),
    ],
    ids=["strides", "beyond", "before"],
)
def test_layouts_and_what_is_beside_tensors_are_looked_at(
    text: str, name: str, fault: str, tmp_path: Path, session: SandboxedSession, probes: SandboxedProbes
) -> None:
    found = both(of_file(tmp_path, text, name), session, probes)
    assert found[:2] == ("ok", "wrong_result")
    assert fault in found[2]
