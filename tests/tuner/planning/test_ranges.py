"""Of many sizes of one range along which winners transfer one is tuned, and a few are each tuned."""

from __future__ import annotations

from registry.contracts import RMS_NORM, SOFTMAX
from registry.problem import Problem
from registry.tuner.planning.ranges import FEW, represented

OPS = {"softmax": SOFTMAX, "rms_norm": RMS_NORM}


def softmax(cols: int, rows: int = 8, dtype: str = "float32") -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols, "dtype": dtype})


def test_a_recording_of_a_cache_that_grows_is_one_problem_for_each_range() -> None:
    recorded = [softmax(cols) for cols in range(525, 1025)]
    found = represented(recorded, dict.fromkeys(recorded, 2), OPS.__getitem__)
    assert found.problems == (softmax(1023),)
    assert found.counts == {softmax(1023): 1000}
    (note,) = found.notes
    assert note.startswith(
        "softmax(rows=8, cols=1023, dtype=float32) is tuned for 500 problems with cols from 525 to 1024"
    )
    assert "--all-sizes" in note


def test_other_dimensions_and_ranges_are_problems_of_their_own_in_their_order() -> None:
    recorded = [softmax(cols, rows) for rows in (8, 9) for cols in range(1000, 1100)]
    recorded.insert(3, Problem("rms_norm", {"rows": 8, "cols": 4096, "dtype": "float32"}))
    found = represented(recorded, {}, OPS.__getitem__)
    assert [(one.op, one.rows, one.cols) for one in found.problems] == [
        ("rms_norm", 8, 4096), ("softmax", 8, 1023), ("softmax", 8, 1099), ("softmax", 9, 1023), ("softmax", 9, 1099),
    ]  # fmt: skip
    assert found.counts == {}
    assert len(found.notes) == 4


def test_what_has_most_calls_says_how_the_size_divides() -> None:
    padded = [softmax(cols) for cols in range(576, 1025, 64)]
    counts = dict.fromkeys(padded, 10) | {softmax(cols): 1 for cols in (901, 903, 905)}
    assert represented(counts, counts, OPS.__getitem__).problems == (softmax(1024),)


def test_a_few_sizes_of_a_range_are_each_tuned_and_so_are_those_along_which_nothing_transfers() -> None:
    few = [softmax(cols) for cols in range(600, 600 + FEW)]
    norms = [Problem("rms_norm", {"rows": 8, "cols": cols, "dtype": "float32"}) for cols in range(600, 700)]
    found = represented([*few, *norms], {few[0]: 7}, OPS.__getitem__)
    assert found.problems == (*few, *norms)
    assert (found.counts, found.notes) == ({few[0]: 7}, ())
