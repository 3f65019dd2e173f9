"""Recording: which problems a program calls and how often, in a file that tuning reads and that never loses counts."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Floor, Op, Problem, RegistryError, Tolerance, implementation_of
from registry.contracts import BOX
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.recording import recording_file
from registry.dispatch.recording.recorder import Recorder
from registry.dispatch.warning import DispatchWarning
from registry.errors import ShapesFileError
from registry.tuner.shapes.shapes import read_shapes

from ... import fresh

LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefgh")
)
"""Nine lines that stand for 43 million values."""

HEADER = "# Recorded by kernel-registry 0.1.0: what a program called"


def softmax(rows: int, cols: int = 16) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": "float32"})


def gelu(approximate: str) -> Problem:
    return Problem("gelu", {"n": 64, "approximate": approximate, "dtype": "bfloat16"})


def counts_of(path: Path) -> dict[str, int]:
    return {str(problem): count for problem, count in read_shapes(path, Catalog()).counts.items()}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder({})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shapes.yaml"


def test_a_block_writes_what_it_saw_as_a_shapes_file(recorder: Recorder, path: Path) -> None:
    assert recorder.active == 0
    with recorder.record(path):
        assert recorder.active == 1
        for _ in range(37):
            recorder.seen(softmax(256))
        recorder.seen(softmax(16))
        recorder.seen(gelu("none"))
    assert recorder.active == 0
    lines = path.read_text().splitlines()
    assert lines[0].startswith(HEADER)
    assert "torch 2" in lines[2]
    assert "UTC" in lines[2]
    assert lines[3:] == [
        "",
        "gelu:",
        "  - {n: 64, approximate: none, dtype: bfloat16, count: 1}",
        "",
        "softmax:",
        "  - {rows: 16, cols: 16, dtype: float32, count: 1}",
        "  - {rows: 256, cols: 16, dtype: float32, count: 37}",
    ]
    shapes = read_shapes(path, Catalog())
    assert shapes.problems == {"gelu": [gelu("none")], "softmax": [softmax(16), softmax(256)]}
    assert shapes.counts[softmax(256)] == 37


def test_what_is_seen_outside_of_a_block_is_not_written(recorder: Recorder, path: Path) -> None:
    recorder.seen(softmax(1))
    with recorder.record(path):
        recorder.seen(softmax(2))
    recorder.seen(softmax(3))
    assert counts_of(path) == {str(softmax(2)): 1}


def test_a_block_that_saw_nothing_makes_no_file_and_says_so(recorder: Recorder, path: Path) -> None:
    with pytest.warns(DispatchWarning, match=f"nothing was recorded to {path}") as told, recorder.record(path):
        pass
    assert [warning.filename for warning in told] == [__file__]
    assert not path.exists()


def test_a_second_recording_adds_to_the_first(recorder: Recorder, path: Path) -> None:
    for rows in (1, 2):
        with recorder.record(path):
            recorder.seen(softmax(rows))
            recorder.seen(softmax(8))
    assert counts_of(path) == {str(softmax(1)): 1, str(softmax(2)): 1, str(softmax(8)): 2}
    assert sum(line.startswith("# on ") for line in path.read_text().splitlines()) == 1


def test_ops_of_plugins_that_are_gone_and_entries_by_hand_are_kept(recorder: Recorder, path: Path) -> None:
    with recorder.record(path):
        recorder.seen(Problem("acme::row_sum", {"rows": 4, "flag": True, "mode": "yes"}))
        recorder.seen(softmax(1))
    path.write_text(path.read_text() + "  - {rows: [3, 4], cols: 16, dtype: float32}\n")
    with recorder.record(path):
        recorder.seen(softmax(1))
    body = path.read_text()
    assert "acme::row_sum:\n  - {rows: 4, flag: true, mode: 'yes', count: 1}\n" in body
    assert "  - {rows: 1, cols: 16, dtype: float32, count: 2}\n" in body
    assert "  - {rows: [3, 4], cols: 16, dtype: float32, count: 1}\n" in body


def test_an_exception_in_the_block_loses_no_counts(recorder: Recorder, path: Path) -> None:
    def program() -> None:
        with recorder.record(path):
            recorder.seen(softmax(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert counts_of(path) == {str(softmax(1)): 1}
    assert recorder.active == 0


def test_blocks_nest_with_files_of_their_own(recorder: Recorder, tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.yaml", tmp_path / "inner.yaml"
    with recorder.record(outer):
        recorder.seen(softmax(1))
        with recorder.record(inner):
            assert recorder.active == 2
            recorder.seen(softmax(2))
        recorder.seen(softmax(2))
    assert counts_of(outer) == {str(softmax(1)): 1, str(softmax(2)): 2}
    assert counts_of(inner) == {str(softmax(2)): 1}


def test_one_file_is_not_recorded_to_twice_at_once(recorder: Recorder, path: Path) -> None:
    told = pytest.raises(RegistryError, match="is being recorded to already")
    with recorder.record(path):
        recorder.seen(softmax(1))
        with told, recorder.record(path.parent / "." / path.name):
            pytest.fail("the block was entered")


def test_threads_lose_no_counts(recorder: Recorder, path: Path) -> None:
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        for number in range(2000):
            recorder.seen(softmax(1 + number % 3))

    with recorder.record(path), ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert sum(counts_of(path).values()) == 8000


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("softmax:\n  - {rows: 1, cols: 2, dtype: float32}\n", "is there and is no recording"),
        ("\x80", "is there and is no recording"),
        (f"{HEADER}\n: {{", "is there and is no recording"),
        (f"{HEADER}\nsoftmax:\n  - {{rows: 1, count: 0}}\n", r"softmax\[0\]: got"),
        (f"{HEADER}\nsoftmax: 3\n", r"softmax\[0\]: got"),
        (f"{HEADER}\nsoftmax:\n  - {{rows: 2024-01-01}}\n", r"softmax\[0\]: got"),
        (f"{HEADER}\nsoftmax:\n  - {{rows: 0x{'f' * 5000}}}\n", r"softmax\[0\]: got"),
        (f"{HEADER}\n" + "[" * 200_000, "is there and is no recording"),
        (f"{HEADER}\n" + "{a: " * 200_000, "is there and is no recording"),
        (f"{HEADER}\n" + LAUGHS, "is there and is no recording"),
    ],
    ids=itertools.count(),
)
@pytest.mark.few(4)
def test_other_files_are_refused_before_anything_is_counted(
    recorder: Recorder, path: Path, content: str, fault: str
) -> None:
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ShapesFileError, match=fault), recorder.record(path):
        pytest.fail("the block was entered")
    assert path.read_text(encoding="latin-1") == content


@pytest.mark.parametrize("place", ["absent/shapes.yaml", "folder", "file/shapes.yaml"])
def test_a_path_that_cannot_be_written_is_refused_at_entry(recorder: Recorder, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match="cannot be written"), recorder.record(tmp_path / place):
        pytest.fail("the block was entered")
    assert recorder.active == 0


def test_a_pipe_is_refused_and_not_waited_for(recorder: Recorder, path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ShapesFileError, match="is no recording"), recorder.record(path):
        pytest.fail("the block was entered")


def test_an_op_of_any_name_is_written_so_that_it_is_read_again(recorder: Recorder, path: Path) -> None:
    path.write_text(f"{HEADER}\n'a: [b':\n  - {{rows: 1, count: 2}}\n")
    for _ in range(2):
        with recorder.record(path):
            recorder.seen(softmax(1))
    assert recording_file.read(path).rows.keys() == {"a: [b", "softmax"}


def test_an_empty_file_is_filled_and_no_scratch_file_stays(recorder: Recorder, path: Path) -> None:
    path.touch(mode=0o640)
    with recorder.record(path):
        recorder.seen(softmax(1))
    assert counts_of(path) == {str(softmax(1)): 1}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(recorder: Recorder, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.yaml"
    path.symlink_to(target)
    with recorder.record(path):
        recorder.seen(softmax(1))
    assert path.is_symlink()
    assert counts_of(target) == {str(softmax(1)): 1}


def test_a_recording_is_bounded_and_says_what_it_left_out(
    recorder: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 20
    monkeypatch.setattr(recording_file, "MOST_PROBLEMS", limit)
    for _ in range(2):
        with recorder.record(path):
            for number in range(limit + 5):
                recorder.seen(softmax(number + 1))
    assert f"# left out: 10 calls of problems beyond the first {limit}" in path.read_text()
    counts = read_shapes(path, Catalog()).counts
    assert len(counts) == limit
    assert set(counts.values()) == {2}


# the variable

CHILD = """
import sys, os, multiprocessing, threading
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.recording.recorder import Recorder
from registry import Problem

recorder = Recorder()

def call(rows):
    recorder.seen(Problem("softmax", {"rows": rows, "cols": 16, "dtype": "float32"}))

def work(rows):
    call(rows)

if __name__ == "__main__":
    {body}
"""


def run(tmp_path: Path, body: str, environ: Mapping[str, str]) -> fresh.Done:
    script = tmp_path / "program.py"
    script.write_text(CHILD.replace("{body}", body.replace("\n", "\n    ")))
    return fresh.run(script, env={**os.environ, **environ})


@pytest.mark.timeout(120)
def test_the_variable_records_a_whole_program_with_its_children(tmp_path: Path, path: Path) -> None:
    body = """
call(1)
for method, rows in (("fork", 2), ("spawn", 4)):
    child = multiprocessing.get_context(method).Process(target=work, args=(rows,))
    child.start()
    child.join()
if os.fork() == 0:
    call(3)
    sys.exit(0)
os.wait()
call(1)
"""
    done = run(tmp_path, body, {"KERNEL_REGISTRY_RECORD": str(path)})
    assert done.returncode == 0, done.stderr
    assert counts_of(path) == {str(softmax(1)): 2, **{str(softmax(rows)): 1 for rows in (2, 3, 4)}}


@pytest.mark.timeout(120)
@pytest.mark.thorough
def test_a_program_that_calls_nothing_says_so_once_at_its_end(tmp_path: Path, path: Path) -> None:
    body = """
children = [multiprocessing.get_context(method).Process(target=print) for method in ("fork", "spawn")]
for child in children:
    child.start()
for child in children:
    child.join()
"""
    done = run(tmp_path, body, {"KERNEL_REGISTRY_RECORD": str(path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"KERNEL_REGISTRY_RECORD: nothing was recorded to {path}") == 1
    assert not path.exists()


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_what_a_spawned_child_calls_is_recorded_and_its_program_says_nothing(tmp_path: Path, path: Path) -> None:
    body = """
child = multiprocessing.get_context("spawn").Process(target=work, args=(2,))
child.start()
"""
    done = run(tmp_path, body, {"KERNEL_REGISTRY_RECORD": str(path)})
    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    assert counts_of(path) == {str(softmax(2)): 1}


def test_a_path_of_the_variable_that_cannot_be_written_is_told_at_the_first_call(tmp_path: Path) -> None:
    recorder = Recorder({"KERNEL_REGISTRY_RECORD": str(tmp_path / "absent" / "shapes.yaml")})
    assert recorder.active == 1
    for _ in range(2):
        with pytest.raises(RegistryError, match=r"KERNEL_REGISTRY_RECORD: record: .* cannot be written"):
            recorder.seen(softmax(1))
    # at the program's end it is not told besides that nothing was called
    assert recorder.recorded == str(tmp_path / "absent" / "shapes.yaml")


def test_writers_at_once_lose_no_counts(path: Path) -> None:
    together = threading.Barrier(8)

    def write(number: int) -> None:
        together.wait()
        recording_file.add(path, {softmax(number % 3 + 1): 1, softmax(9): 2}, 0, "here", f"{number}")

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(write, number) for number in range(8)]:
            done.result()
    assert sum(counts_of(path).values()) == 8 * 3
    assert counts_of(path)[str(softmax(9))] == 16


def test_the_dispatcher_reports_every_call_that_has_something_to_run(
    dispatcher: Dispatcher, told: type[Any], path: Path
) -> None:
    dispatcher.register(told("a.one"))
    few, many = torch.randn(4, 16), torch.randn(5, 16)
    dispatcher.call("softmax", few)
    with dispatcher.recorder.record(path):
        for _ in range(3):
            dispatcher.call("softmax", few)
        dispatcher.op("softmax")(many)
        dispatcher.call("softmax", many[:0])
        dispatcher.explain("softmax", many)
    dispatcher.call("softmax", few)
    assert counts_of(path) == {str(softmax(4)): 3, str(softmax(5)): 1}


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_only_calls_that_a_kernel_may_answer_are_counted(path: Path) -> None:
    """What docs/shapes.md says is not counted: tuning would not change what answers it."""

    class Behaving(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any) -> Any:
            return super().__torch_function__(*args)

    dispatcher = Dispatcher(Catalog(entry_points=()))
    x = torch.randn(4, 8)
    with dispatcher.recorder.record(path):
        dispatcher.call("softmax", x.as_subclass(Behaving))
        torch.vmap(lambda row: dispatcher.call("softmax", row))(x)
        torch.func.jvp(lambda t: dispatcher.call("softmax", t), (x,), (x,))
        dispatcher.call("softmax", x[:0])
        dispatcher.call("softmax", x.to("meta"))
        dispatcher.explain("softmax", x)
        dispatcher.call("square", torch.ones(3))
    assert counts_of(path) == {"square(n=3, dtype=float32)": 1}


def test_numbers_below_one_are_recorded_and_missed_and_sizes_below_one_are_not(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed, name = tmp_path / "missed.yaml", "test::shifted"
    monkeypatch.setenv("KERNEL_REGISTRY_MISSES", str(missed))
    op = Op(
        name=name,
        schema=f"{name}(Tensor x, int shift) -> Tensor y",
        version=1,
        reference=lambda x, shift: x + shift,
        problem=lambda given: {"pairs": given.tensor("x").numel // 2, "shift": given.integer("shift")},
        inputs=lambda problem, _kind, _generator: (torch.ones(2 * problem.pairs), problem.shift),
        floor=lambda _: Floor(1, 1),
        tolerance=Tolerance({}, {}, lambda _, y: y),
        static=frozenset(),
        dynamic=frozenset({"pairs", "shift"}),
    )
    catalog = Catalog(entry_points=())
    catalog.define(op)
    catalog.register(implementation_of(name, "own.torch", lambda x, shift: x + shift, any_size=True))
    dispatcher = Dispatcher(catalog)
    with dispatcher.recorder.record(path):
        for shift in (0, -3, 5):
            dispatcher.call(name, torch.ones(4), shift)
        dispatcher.call(name, torch.ones(1), 5)  # half a pair
    dispatcher.recorder.misses.save()
    for written in (path, missed):
        found = read_shapes(written, catalog).problems[name]
        assert {(problem.pairs, problem.shift) for problem in found} == {(2, 0), (2, -3), (2, 5)}


def test_the_shapes_guide_names_every_op_of_the_box_with_its_dimensions() -> None:
    guide = (Path(recording_file.__file__).parents[3] / "docs" / "shapes.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    for op in BOX:
        (row,) = (line for line in rows if f"`{op.name}`" in line.split("|")[1])
        for name in op.static | op.dynamic:
            assert f"`{name}`" in row, f"{op.name}: {name}"
