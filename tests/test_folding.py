"""Faults of one kind are one line, with an example and the number of problems and configurations."""

from __future__ import annotations

from registry.folding import Place, folded, kind_of


def test_faults_that_differ_in_numbers_are_one_line_with_the_first_as_example() -> None:
    faults = [
        (Place(f"n={n} B={block}", f"n={n}", f"B={block}"), f"y[{n - 1}] is {-n / 7}, expected {n}e-07")
        for n in (3, 4096)
        for block in (8, 16, 32)
    ]
    assert folded(faults) == ["n=3 B=8: y[2] is -0.42857142857142855, expected 3e-07 (2 problems, 3 configs)"]


def test_what_is_no_number_of_the_fault_tells_faults_apart() -> None:
    told = ["k.py:3: no", "k.py:4: no", "is float16", "is float32", "is nan", "is 1", "is 3x4", "out: 2 of 3"]
    assert len({kind_of(fault) for fault in told}) == len(told) - 1
    assert kind_of("is 1") == kind_of("is 3x4")


def test_faults_of_two_groups_are_two_lines() -> None:
    faults = [(Place(name, group=name), "no memory") for name in ("a.one", "a.two", "a.one")]
    assert folded(faults) == ["a.one: no memory (x 2)", "a.two: no memory"]


def test_the_kinds_of_inputs_that_show_a_fault_are_named() -> None:
    assert folded([(Place(), f"{kind} inputs: y[0] is 3") for kind in ("normal", "constant")]) == [
        "normal inputs: y[0] is 3 (normal and constant inputs)"
    ]
