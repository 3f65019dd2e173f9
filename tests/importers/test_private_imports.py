"""What a foreign file imports is what its leaderboard gives it, and no other file sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.errors import InvalidDefinitionError, UnsupportedError
from registry.importers.detection import imported, submission_of
from registry.importers.foreign_file import ForeignFile

REFERENCE = """
import torch
from task import input_t, output_t
from utils import SCALE, checked


def ref_kernel(data: input_t) -> output_t:
    return data * SCALE


def generate_input(size: int, seed: int) -> input_t:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


check_implementation = checked(ref_kernel)
"""
TASK = "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = input_t\n"
UTILS = "from numbers_of import SCALE\ndef checked(reference):\n    return lambda data, output: (True, '')\n"
AT_FIRST = "from task import input_t\nfrom utils import SCALE\ndef custom_kernel(x: input_t):\n    return x * SCALE\n"
AT_A_CALL = "def custom_kernel(data):\n    import task\n    from utils import SCALE\n    return data * SCALE\n"
SETTINGS = "tests: [{size: 8, seed: 1}]\n"


def a_problem(folder: Path, scale: int, utils: str = "", **files: str) -> Path:
    """A problem whose ``utils`` lies in the folder above, or at the path ``utils`` from the problem's own folder."""
    place = folder / "problem"
    place.mkdir(parents=True)
    for name, text in {"reference": REFERENCE, "task": TASK, **files}.items():
        (place / f"{name}.py").write_text(text)
    held = (place / utils).resolve() if utils else folder / "utils.py"
    held.parent.mkdir(parents=True, exist_ok=True)
    held.write_text(UTILS)
    (held.parent / "numbers_of.py").write_text(f"SCALE = {scale}\n")
    more = f"files: [{{name: utils.py, source: {utils}}}, {{name: submission.py, source: '@SUBMISSION@'}}]\n"
    (place / "task.yml").write_text(SETTINGS + (more if utils else ""))
    return place


def result_of(place: Path, submission: Path) -> torch.Tensor:
    """What a submission returns for ones, called as an implementation."""
    there = imported(place)
    implementation = submission_of(str(submission), there.name, "race.one", there.file.path)
    problem = there.op.problem_of(there.problems()[0])
    run = implementation.bind(problem, {}, Device.of("cpu"), None)  # type: ignore[arg-type]
    found: torch.Tensor = run((), (torch.ones(8),), ())
    return found


@pytest.mark.parametrize("text", [AT_FIRST, AT_A_CALL], ids=["at first", "at a call"])
@pytest.mark.parametrize("utils", ["", "../shared/deep/utils.py"], ids=["above", "named by task.yml"])
@pytest.mark.few(2)
def test_two_problems_have_a_task_and_utils_of_their_own(text: str, utils: str, tmp_path: Path) -> None:
    submission = tmp_path / "submissions" / "one.py"
    submission.parent.mkdir()
    submission.write_text(text)
    # a submission of this name hides nothing
    (submission.parent / "utils.py").write_text("SCALE = 1000\n")
    before = {name for name in ("task", "utils", "numbers_of") if name in sys.modules}
    for scale in (3, 5):
        place = a_problem(tmp_path / str(scale), scale, utils)
        for _ in range(2):
            assert torch.equal(result_of(place, submission), torch.full((8,), float(scale)))
    assert {name for name in ("task", "utils", "numbers_of") if name in sys.modules} == before


def test_types_are_supplied_where_no_task_is(tmp_path: Path) -> None:
    place = a_problem(tmp_path, 3)
    (place / "task.py").unlink()
    submission = tmp_path / "one.py"
    submission.write_text(AT_FIRST.replace("import input_t", "import input_t, Whatever"))
    assert torch.equal(result_of(place, submission), torch.full((8,), 3.0))


def test_what_is_nowhere_is_told_with_the_places_where_it_may_lie(tmp_path: Path) -> None:
    place = a_problem(tmp_path, 3)
    (tmp_path / "utils.py").unlink()
    with pytest.raises(UnsupportedError, match=r"reference.py cannot be imported: .*'utils'") as raised:
        imported(place).op  # noqa: B018
    assert str(place) in raised.value.hint
    (place / "task.yml").write_text("tests: [")
    with pytest.raises(InvalidDefinitionError, match=r"task.yml: no YAML"):
        imported(tmp_path / "problem" / "reference.py", "").op  # noqa: B018


def test_no_file_hides_torch_or_what_python_brings(tmp_path: Path) -> None:
    for name in ("torch", "random"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    (tmp_path / "one.py").write_text("import torch\nimport random\nfound = torch, random\n")
    assert ForeignFile(tmp_path / "one.py").member("found")[0] is torch
